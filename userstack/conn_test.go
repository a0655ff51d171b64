// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"smcr/userstack/simfabric"
)

// settled is longer than a message takes.
const settled = 10 * time.Millisecond

// isOp checks the form of an error of a connection.
func isOp(t *testing.T, err error, op string, target error) {
	t.Helper()
	var oe *net.OpError
	if !errors.As(err, &oe) || oe.Op != op || oe.Net != "tcp" || oe.Source == nil || oe.Addr == nil {
		t.Errorf("%#v is no net.OpError of %s", err, op)
	}
	if !errors.Is(err, target) {
		t.Errorf("%s: %v, want %v", op, err, target)
	}
}

func TestHalfClose(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		if _, err := c.Write([]byte("request")); err != nil {
			t.Fatal(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		isOp(t, writeByte(c), "write", syscall.EPIPE)
		req, err := io.ReadAll(s)
		if err != nil || string(req) != "request" {
			t.Fatalf("server read %q, %v", req, err)
		}
		// The other direction still works, for more data than a window.
		b.exchange(s, c, pattern(1, 500<<10))
		if err := s.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if err := readByte(c); err != io.EOF {
			t.Errorf("client read %v, want EOF", err)
		}
		if err := readByte(s); err != io.EOF {
			t.Errorf("server read %v, want EOF", err)
		}
		b.finish(c, s)
	})
}

// TestCloseSendsEverything closes just after a write that is larger than the window.
func TestCloseSendsEverything(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		data := pattern(5, 1<<20)
		go func() {
			if _, err := c.Write(data); err != nil {
				t.Errorf("write: %v", err)
			}
			if err := c.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}()
		var got bytes.Buffer
		buf := make([]byte, 3000)
		for {
			n, err := s.Read(buf)
			got.Write(buf[:n])
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond) // a slow reader
		}
		if !bytes.Equal(got.Bytes(), data) {
			t.Errorf("read %d of %d bytes", got.Len(), len(data))
		}
		isOp(t, writeByte(s), "write", syscall.EPIPE)
		s.Close()
		if err := b.ended(c); err != nil {
			t.Errorf("client ended with %v", err)
		}
	})
}

// TestEnds checks each way to end a connection, from either side, and what the other side
// sees.
func TestEnds(t *testing.T) {
	tests := []struct {
		name        string
		do          func(t *testing.T, x *Conn, peer *Conn)
		read, write error // of the peer
		err         error // error of the peer's connection at the end; nil for an orderly end
	}{
		{"Close", func(t *testing.T, x, _ *Conn) { x.Close() }, io.EOF, syscall.EPIPE, nil},
		{"CloseWithUnreadData", func(t *testing.T, x, peer *Conn) {
			writeByte(peer)
			time.Sleep(settled)
			x.Close()
		}, syscall.ECONNRESET, syscall.ECONNRESET, syscall.ECONNRESET},
		{"Abort", func(t *testing.T, x, _ *Conn) { x.Abort() }, syscall.ECONNRESET, syscall.ECONNRESET, syscall.ECONNRESET},
		{"AbortWithDataUnderWay", func(t *testing.T, x, peer *Conn) {
			writeByte(x)
			writeByte(peer)
			x.Abort()
		}, syscall.ECONNRESET, syscall.ECONNRESET, syscall.ECONNRESET},
		{"LingerZero", func(t *testing.T, x, _ *Conn) {
			x.SetLinger(0)
			x.Close()
		}, syscall.ECONNRESET, syscall.ECONNRESET, syscall.ECONNRESET},
		{"LingerOn", func(t *testing.T, x, _ *Conn) {
			x.SetLinger(0)
			x.SetLinger(5)
			x.Close()
		}, io.EOF, syscall.EPIPE, nil},
		{"TCPReset", func(t *testing.T, x, _ *Conn) {
			x.tcp.(*simfabric.TCPConn).SetLinger(0)
			x.tcp.Close()
		}, syscall.ECONNRESET, syscall.ECONNRESET, syscall.ECONNRESET},
		{"TCPFin", func(t *testing.T, x, _ *Conn) {
			x.tcp.(*simfabric.TCPConn).CloseWrite()
		}, syscall.ECONNRESET, syscall.ECONNRESET, syscall.ECONNRESET},
		{"TCPData", func(t *testing.T, x, _ *Conn) {
			x.tcp.Write([]byte("intruder"))
		}, syscall.ECONNABORTED, syscall.ECONNABORTED, syscall.ECONNABORTED},
	}
	for _, tt := range tests {
		for _, who := range []string{"Client", "Server"} {
			t.Run(tt.name+who, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					b := newBed(t, bedConfig{})
					x, peer := b.connect()
					if who == "Server" {
						x, peer = peer, x
					}
					tt.do(t, x, peer)
					time.Sleep(5 * time.Second) // longer than the grace period of a TCP connection that has ended
					if tt.name == "AbortWithDataUnderWay" {
						if err := readByte(peer); err != nil { // it arrived before the reset
							t.Error(err)
						}
					}
					if tt.read == io.EOF {
						if err := readByte(peer); err != io.EOF {
							t.Errorf("read: %v, want EOF", err)
						}
					} else {
						isOp(t, readByte(peer), "read", tt.read)
					}
					isOp(t, writeByte(peer), "write", tt.write)
					peer.Close()
					x.Close()
					if err := b.ended(peer); (err == nil) != (tt.err == nil) || err != nil && !errors.Is(sysError("read", err), tt.err) {
						t.Errorf("peer ended with %v, want %v", err, tt.err)
					}
					b.ended(x)
					if got := b.client.driver.MemoryInUse(); got > 2<<20 {
						t.Errorf("%d bytes in use after the end", got)
					}
				})
			})
		}
	}
}

// TestSimultaneousEnds: both sides end at nearly the same time, in each combination of
// ways.
func TestSimultaneousEnds(t *testing.T) {
	ways := map[string]func(c *Conn){
		"close":      func(c *Conn) { c.Close() },
		"closeWrite": func(c *Conn) { c.CloseWrite(); time.Sleep(30 * time.Microsecond); c.Close() },
		"abort":      func(c *Conn) { c.Abort() },
		"writeClose": func(c *Conn) { c.Write(make([]byte, 5000)); c.Close() },
		"tcp":        func(c *Conn) { c.tcp.Close(); time.Sleep(settled); c.Close() },
	}
	for n1, f1 := range ways {
		for n2, f2 := range ways {
			t.Run(n1+"-"+n2, func(t *testing.T) {
				for skew := -60 * time.Microsecond; skew <= 60*time.Microsecond; skew += 20 * time.Microsecond {
					bubble(t, func(t *testing.T) {
						b := newBed(t, bedConfig{fabric: simfabric.Config{Delay: 25 * time.Microsecond}})
						c, s := b.connect()
						var wg sync.WaitGroup
						wg.Go(func() { time.Sleep(max(0, skew)); f1(c) })
						wg.Go(func() { time.Sleep(max(0, -skew)); f2(s) })
						wg.Wait()
						b.ended(c)
						b.ended(s)
					})
				}
			})
		}
	}
}

func TestUseAfterClose(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		// Close wakes calls that wait.
		errs := make(chan error, 2)
		go func() { errs <- readByte(c) }()
		go func() {
			_, err := s.Write(make([]byte, 1<<20))
			errs <- err
		}()
		synctest.Wait()
		c.Close()
		s.Close()
		for range 2 {
			if err := <-errs; !errors.Is(err, net.ErrClosed) {
				t.Errorf("woken with %v, want net.ErrClosed", err)
			}
		}
		isOp(t, readByte(c), "read", net.ErrClosed)
		isOp(t, writeByte(c), "write", net.ErrClosed)
		isOp(t, c.Close(), "close", net.ErrClosed)
		isOp(t, c.Abort(), "close", net.ErrClosed)
		isOp(t, c.CloseWrite(), "close", net.ErrClosed)
		isOp(t, c.SetDeadline(time.Now()), "set", net.ErrClosed)
		isOp(t, c.SetReadDeadline(time.Now()), "set", net.ErrClosed)
		isOp(t, c.SetWriteDeadline(time.Now()), "set", net.ErrClosed)
		_, err := c.WriteTo(io.Discard)
		isOp(t, err, "read", net.ErrClosed)
		_, err = c.ReadFrom(strings.NewReader("x"))
		isOp(t, err, "write", net.ErrClosed)
		// An earlier deadline does not hide that.
		c2, s2 := b.connect()
		c2.SetDeadline(time.Now())
		c2.Close()
		isOp(t, readByte(c2), "read", net.ErrClosed)
		isOp(t, writeByte(c2), "write", net.ErrClosed)
		s2.Close()
		if c.LocalAddr() == nil || c.RemoteAddr() == nil {
			t.Error("addresses are gone")
		}
	})
}

func TestDeadlines(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		timeout := func(op string, err error) {
			t.Helper()
			isOp(t, err, op, os.ErrDeadlineExceeded)
			var ne net.Error
			if !errors.As(err, &ne) || !ne.Timeout() {
				t.Errorf("%v is no timeout", err)
			}
		}
		start := time.Now()
		c.SetReadDeadline(start.Add(time.Second))
		timeout("read", readByte(c))
		if d := time.Since(start); d != time.Second {
			t.Errorf("read timed out after %v", d)
		}
		timeout("read", readByte(c)) // again, without waiting
		_, err := c.WriteTo(io.Discard)
		timeout("read", err)
		if err := writeByte(c); err != nil {
			t.Errorf("write under a read deadline: %v", err)
		}

		// The deadline changes while a call waits.
		c.SetReadDeadline(time.Time{})
		errs := make(chan error, 1)
		go func() { errs <- readByte(c) }()
		synctest.Wait()
		c.SetReadDeadline(time.Now().Add(time.Hour))
		c.SetReadDeadline(time.Now().Add(time.Minute))
		timeout("read", <-errs)
		c.SetReadDeadline(time.Time{})
		if err := writeByte(s); err != nil {
			t.Fatal(err)
		}
		if err := readByte(c); err != nil {
			t.Errorf("read after the deadline was removed: %v", err)
		}

		// A write that is cut short returns the number of bytes that it took.
		c.SetWriteDeadline(time.Now().Add(time.Second))
		n, err := c.Write(make([]byte, 10<<20))
		timeout("write", err)
		if n <= 0 || n >= 1<<20 {
			t.Errorf("%d bytes written to a peer that does not read", n)
		}
		m, err := c.ReadFrom(bytes.NewReader(make([]byte, 100)))
		timeout("write", err)
		if m != 0 {
			t.Errorf("ReadFrom took %d bytes", m)
		}
		c.SetWriteDeadline(time.Time{})
		got := make([]byte, 1+n)
		if _, err := io.ReadFull(s, got); err != nil {
			t.Error(err)
		}
		b.finish(c, s)
	})
}

func TestSyscallConn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		if _, err := c.SyscallConn(); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("over a connection without socket: %v", err)
		}
		b.finish(c, s)
	})
}
