// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"smcr/userstack/simfabric"
)

// TestCloseRead: after CloseRead, the program reads the end of the stream, what the peer sends is
// discarded, many windows of it, and the peer is not told. The other direction works.
func TestCloseRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		write(t, c, "unread")
		if err := s.CloseRead(); err != nil {
			t.Fatal(err)
		}
		if err := readByte(s); err != io.EOF {
			t.Errorf("read: %v, want EOF", err)
		}
		if n, err := c.Write(pattern(1, 1<<20)); n != 1<<20 || err != nil { // 16 windows
			t.Errorf("the peer wrote %d, %v", n, err)
		}
		if err := s.CloseRead(); err != nil {
			t.Errorf("again: %v", err)
		}
		if err := readByte(s); err != io.EOF {
			t.Errorf("read: %v, want EOF", err)
		}
		// The peer does not notice.
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if err := readByte(c); !isTimeout(err) {
			t.Errorf("the peer reads %v, want nothing", err)
		}
		_ = c.SetReadDeadline(time.Time{})
		b.exchange(s, c, pattern(2, 300<<10))
		// Nothing is unread, so nothing is reset.
		b.finish(s, c)
		isOp(t, s.CloseRead(), "close", net.ErrClosed)
	})
}

// TestCloseReadWakes: each call that waits for data ends as at the end of the stream.
func TestCloseReadWakes(t *testing.T) {
	for name, tt := range map[string]struct {
		call func(c *Conn) error
		want error
	}{
		"Read":    {readByte, io.EOF},
		"Peek":    {func(c *Conn) error { _, _, err := c.Peek(1); return err }, io.EOF},
		"Discard": {func(c *Conn) error { _, err := c.Discard(1); return err }, io.EOF},
		"WriteTo": {func(c *Conn) error { _, err := c.WriteTo(io.Discard); return err }, nil},
	} {
		for _, engine := range []bool{false, true} {
			t.Run(fmt.Sprint(name, engine), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					b := newBed(t, bedConfig{server: func(c *Config) { c.NoEngine = !engine }})
					c, s := b.connect()
					got := make(chan error, 1)
					go func() { got <- tt.call(s) }()
					synctest.Wait()
					if len(got) > 0 {
						t.Fatalf("it did not wait: %v", <-got)
					}
					_ = s.CloseRead()
					if err := <-got; err != tt.want {
						t.Errorf("%v, want %v", err, tt.want)
					}
					if _, err := c.Write(pattern(1, 200<<10)); err != nil {
						t.Error(err)
					}
					b.finish(c, s)
				})
			})
		}
	}
}

// TestCloseReadPeeked: bytes that the program has from Peek are not overwritten before it returns
// them. Then the peer goes on.
func TestCloseReadPeeked(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		write(t, c, "precious")
		p, _, err := s.Peek(8)
		if err != nil {
			t.Fatal(err)
		}
		_ = s.CloseRead()
		wrote := make(chan error, 1)
		go func() {
			_, err := c.Write(bytes.Repeat([]byte("x"), 300<<10))
			wrote <- err
		}()
		time.Sleep(time.Second)
		if string(p) != "precious" || len(wrote) > 0 {
			t.Errorf("%q; the peer has written all: %v", p, len(wrote) > 0)
		}
		if n, err := s.Discard(0); n != 0 || err != nil {
			t.Errorf("discarded %d, %v", n, err)
		}
		if err := <-wrote; err != nil {
			t.Error(err)
		}
		if _, _, err := s.Peek(1); err != io.EOF {
			t.Errorf("Peek: %v, want EOF", err)
		}
		b.finish(c, s)
	})
}

// TestCloseReadWriteTo: a piece that WriteTo is writing is written as a whole. What comes after it
// is discarded, also if the program closes the connection meanwhile.
func TestCloseReadWriteTo(t *testing.T) {
	for _, closes := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			b := newBed(t, bedConfig{})
			c, s := b.connect()
			write(t, c, "precious")
			pr, pw := io.Pipe()
			type result struct {
				n   int64
				err error
			}
			done := make(chan result, 1)
			go func() {
				n, err := s.WriteTo(pw)
				done <- result{n, err}
			}()
			time.Sleep(settled)
			_ = s.CloseRead()
			wrote := make(chan error, 1)
			go func() {
				_, err := c.Write(bytes.Repeat([]byte("x"), 60<<10))
				wrote <- err
			}()
			time.Sleep(time.Second)
			want := result{8, nil}
			if closes {
				want.err = net.ErrClosed
				_ = s.Close()
			}
			got := make([]byte, 8)
			if _, err := io.ReadFull(pr, got); err != nil || string(got) != "precious" {
				t.Errorf("%q, %v", got, err)
			}
			if r := <-done; r.n != want.n || !errors.Is(r.err, want.err) {
				t.Errorf("WriteTo: %d, %v, want %d, %v", r.n, r.err, want.n, want.err)
			}
			if err := <-wrote; err != nil {
				t.Error(err)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			s.Close()
			if err := errors.Join(b.ended(c), b.ended(s)); err != nil {
				t.Errorf("closes %v: the connection ended with %v", closes, err)
			}
		})
	}
}

// TestCloseReadUrgent: urgent bytes are discarded, too, and the peer can send the next one.
func TestCloseReadUrgent(t *testing.T) {
	for _, inline := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			b := newBed(t, bedConfig{})
			c, s := b.connect()
			_ = s.SetOOBInline(inline)
			urgent := func() {
				t.Helper()
				if n, err := c.WriteUrgent([]byte("abU")); n != 3 || err != nil {
					t.Errorf("the peer wrote %d, %v", n, err)
				}
				time.Sleep(settled)
			}
			urgent()
			<-s.UrgentReady()
			_ = s.CloseRead()
			for range 5 {
				urgent()
				if _, err := s.ReadUrgent(); !errors.Is(err, syscall.EINVAL) {
					t.Errorf("ReadUrgent: %v, want EINVAL", err)
				}
			}
			if len(s.UrgentReady()) > 0 {
				t.Error("notified of an urgent byte that is discarded")
			}
			if _, err := c.Write(pattern(1, 200<<10)); err != nil {
				t.Error(err)
			}
			b.finish(c, s)
		})
	}
}

// TestCloseReadReset: a reset by the peer is not hidden.
func TestCloseReadReset(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		_ = s.CloseRead()
		write(t, c, "data")
		_ = c.Abort()
		if err := b.ended(s); err == nil {
			t.Error("the connection ended in order")
		}
		isOp(t, readByte(s), "read", syscall.ECONNRESET)
		s.Close()
		b.ended(c)
	})
}

// TestCloseReadRaces calls CloseRead and Close at any time, from other goroutines than the one
// that reads, while links lose packets. What was read is a prefix of the stream, the peer can
// write all, and the connection ends in order.
func TestCloseReadRaces(t *testing.T) {
	seeds := uint64(200)
	if testing.Short() {
		seeds = 30
	}
	for seed := range seeds {
		bubble(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			fabric := simfabric.Config{Seed: seed, Delay: 20 * time.Microsecond, Jitter: 50 * time.Microsecond}
			if seed%2 == 1 {
				fabric.Loss = 0.01
			}
			small := func(c *Config) { c.RecvBuf, c.SendBuf = 16<<10, 8<<10 }
			b := newBed(t, bedConfig{fabric: fabric, devices: 1 + int(seed%2), client: small, server: small})
			c, s := b.connect()
			data := pattern(seed, 200<<10)
			pause := time.Duration(r.IntN(20000)) * time.Microsecond
			closeRead := time.Duration(r.IntN(20000)) * time.Microsecond
			wrote, read, shut := make(chan error, 1), make(chan error, 1), make(chan error, 1)
			go func() {
				_, err := c.Write(data)
				if err == nil {
					err = c.CloseWrite()
				}
				wrote <- err
			}()
			var got bytes.Buffer
			go func() {
				var err error
				if seed%3 == 0 {
					_, err = s.WriteTo(&got)
				} else {
					buf := make([]byte, 1+r.IntN(9000))
					for err == nil {
						var n int
						n, err = s.Read(buf)
						got.Write(buf[:n])
						time.Sleep(pause / 16)
					}
				}
				read <- err
			}()
			go func() {
				time.Sleep(closeRead)
				shut <- s.CloseRead()
			}()
			if err := <-shut; err != nil {
				t.Errorf("seed %d: CloseRead: %v", seed, err)
			}
			if err := <-read; err != nil && err != io.EOF {
				t.Errorf("seed %d: the reader ended with %v", seed, err)
			}
			if err := <-wrote; err != nil {
				t.Errorf("seed %d: the peer could not write: %v", seed, err)
			}
			if !bytes.HasPrefix(data, got.Bytes()) {
				t.Errorf("seed %d: %d bytes read that are not those of the stream", seed, got.Len())
			}
			time.Sleep(pause)
			b.finish(s, c)
		})
	}
}
