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
	"testing/iotest"
	"testing/synctest"
	"time"

	"smcr/userstack/simfabric"
)

// settled is longer than any message is under way.
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

func readByte(c *Conn) error {
	_, err := c.Read(make([]byte, 1))
	return err
}

func writeByte(c *Conn) error {
	_, err := c.Write([]byte{1})
	return err
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
		// The other direction goes on, for more than a window.
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

// TestCloseSendsEverything closes at once after a write that does not fit
// any window.
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

// TestEnds tries each way to end a connection from either side, and what the
// other side sees of it.
func TestEnds(t *testing.T) {
	tests := []struct {
		name        string
		do          func(t *testing.T, x *Conn, peer *Conn)
		read, write error // of the peer
		err         error // of the connection in the end, at the peer; nil for an orderly end
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
					time.Sleep(5 * time.Second) // past the grace of a TCP connection that ended
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
					if got := b.client.mem.inUse(); got > 2<<20 {
						t.Errorf("%d bytes in use after the end", got)
					}
				})
			})
		}
	}
}

// TestSimultaneousEnds has both sides end at nearly the same time, in each
// combination of ways.
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
		// Calls that wait are woken by Close.
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
		// A deadline that passed before does not hide that.
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
		timeout("read", readByte(c)) // again, at once
		_, err := c.WriteTo(io.Discard)
		timeout("read", err)
		if err := writeByte(c); err != nil {
			t.Errorf("write under a read deadline: %v", err)
		}

		// Moved while somebody waits.
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

		// A write that is cut short says how much it took.
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

func TestEmptyReadsAndWrites(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		if n, err := c.Read(nil); n != 0 || err != nil {
			t.Errorf("empty read: %d, %v", n, err)
		}
		if n, err := c.Write(nil); n != 0 || err != nil {
			t.Errorf("empty write: %d, %v", n, err)
		}
		b.finish(c, s)
	})
}

func TestReadFromWriteTo(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		data := pattern(9, 700<<10)
		var wg sync.WaitGroup
		wg.Go(func() {
			n, err := io.Copy(c, struct{ io.Reader }{bytes.NewReader(data)}) // ReadFrom
			if err != nil || n != int64(len(data)) {
				t.Errorf("ReadFrom: %d, %v", n, err)
			}
			c.CloseWrite()
		})
		var got bytes.Buffer
		n, err := io.Copy(struct{ io.Writer }{&got}, s) // WriteTo
		if err != nil || n != int64(len(data)) || !bytes.Equal(got.Bytes(), data) {
			t.Errorf("WriteTo: %d, %v", n, err)
		}
		wg.Wait()

		// Errors of the other side come through, with what was done.
		boom := errors.New("boom")
		n, err = c.ReadFrom(io.MultiReader(strings.NewReader("tail"), iotest.ErrReader(boom)))
		if n != 0 || !errors.Is(err, syscall.EPIPE) {
			t.Errorf("ReadFrom after CloseWrite: %d, %v", n, err)
		}
		n, err = s.ReadFrom(io.MultiReader(strings.NewReader("tail"), iotest.ErrReader(boom)))
		if n != 4 || err != boom {
			t.Errorf("ReadFrom a broken reader: %d, %v", n, err)
		}
		if got, err := io.ReadAll(io.LimitReader(c, 4)); string(got) != "tail" {
			t.Errorf("the part before: %q, %v", got, err)
		}
		b.finish(c, s)
	})
}

// TestReadFromAfterPeerClosed has a writer learn with the first bytes that the
// peer did not wait for them.
func TestReadFromAfterPeerClosed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		r, w := io.Pipe()
		result := make(chan error, 1)
		go func() {
			_, err := c.ReadFrom(r)
			result <- err
		}()
		synctest.Wait() // it reads
		s.Close()
		if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
			t.Errorf("read: %d, %v, want the end", n, err)
		}
		go w.Write([]byte("late"))
		if err := <-result; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("ReadFrom: %v, want ECONNRESET", err)
		}
		r.Close()
		c.Close()
		<-s.Done()
	})
}

type errWriter struct{ err error }

func (w errWriter) Write([]byte) (int, error) { return 0, w.err }

// TestWriteToBrokenWriter checks that what a writer did not take stays.
func TestWriteToBrokenWriter(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		if _, err := c.Write([]byte("data")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(settled)
		boom := errors.New("boom")
		if n, err := s.WriteTo(errWriter{boom}); n != 0 || err != boom {
			t.Errorf("WriteTo: %d, %v", n, err)
		}
		got := make([]byte, 4)
		if _, err := io.ReadFull(s, got); err != nil || string(got) != "data" {
			t.Errorf("afterwards: %q, %v", got, err)
		}
		b.finish(c, s)
	})
}

// TestResetDuringCopies resets a connection while ReadFrom and WriteTo hold
// its buffers: they must not be given to another connection meanwhile.
func TestResetDuringCopies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		c, s := b.connect()
		slow, slowW := io.Pipe()
		errs := make(chan error, 2)
		go func() {
			_, err := c.ReadFrom(slow) // holds a piece of the send buffer
			errs <- err
		}()
		if err := writeByte(s); err != nil {
			t.Fatal(err)
		}
		pr, pw := io.Pipe()
		go func() {
			_, err := c.WriteTo(pw) // holds a piece of the RMB element
			errs <- err
		}()
		time.Sleep(settled)
		s.Abort()
		if err := b.ended(c); err == nil {
			t.Error("connection ended in order")
		}
		before := b.client.mem.inUse()
		if _, err := slowW.Write([]byte("late")); err != nil {
			t.Error(err)
		}
		if _, err := pr.Read(make([]byte, 10)); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := <-errs; !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("copy ended with %v, want ECONNRESET", err)
			}
		}
		c2, s2 := b.connect()
		b.exchange(c2, s2, pattern(1, 100<<10))
		b.finish(c2, s2)
		if after := b.client.mem.inUse(); after > before+1<<20 {
			t.Errorf("memory in use grew from %d to %d", before, after)
		}
		slowW.Close()
		pr.Close()
		c.Close()
	})
}

// TestConcurrentWrites has many writers of one connection: each write arrives
// in one piece. Writers wait for each other by mutex, which a bubble takes for
// work, so this runs in real time.
func TestConcurrentWrites(t *testing.T) {
	b := newBed(t, bedConfig{})
	c, s := b.connect()
	const writers, each, size = 8, 30, 3000
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for range each {
				if _, err := c.Write(bytes.Repeat([]byte{byte(w)}, size)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	counts := map[byte]int{}
	buf := make([]byte, size)
	for range writers * each {
		if _, err := io.ReadFull(s, buf); err != nil {
			t.Fatal(err)
		}
		if bytes.Count(buf, buf[:1]) != size {
			t.Fatal("writes are mixed")
		}
		counts[buf[0]]++
	}
	for w, n := range counts {
		if n != each {
			t.Errorf("%d writes of writer %d", n, w)
		}
	}
	wg.Wait()
	b.finish(c, s)
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
