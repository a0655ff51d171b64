// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/smc"
	"smcr/userstack/engine"
	"smcr/userstack/internal/inside"
	"smcr/userstack/wire"
)

// watched is a TCP connection that an engine watches, as that of a service is.
type watched struct {
	*net.TCPConn
	mu     sync.Mutex
	notify func()
	events uint64
	rough  bool
	read   uint64
}

func watch(t *testing.T, c *net.TCPConn) *watched {
	t.Helper()
	loop, err := engine.New(0)
	if err != nil {
		t.Fatal(err)
	}
	w := &watched{TCPConn: c}
	rc, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if cerr := rc.Control(func(fd uintptr) {
		_, err = loop.NewLent(int(fd), func(_, _, plain bool) { w.event(plain) }, func() {})
	}); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	t.Cleanup(func() { _ = loop.Close() })
	return w
}

func (w *watched) event(plain bool) {
	w.mu.Lock()
	w.events++
	w.rough = w.rough || !plain
	f := w.notify
	w.mu.Unlock()
	if f != nil {
		f()
	}
}

// Notifier is for inside.NotifierOf.
func (w *watched) Notifier() inside.Notifier { return w }

// Events implements inside.Notifier.
func (w *watched) Events() (n uint64, plain bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.events, !w.rough
}

// Notify implements inside.Notifier.
func (w *watched) Notify(f func(), read uint64) {
	w.mu.Lock()
	w.notify, w.read = f, max(w.read, read)
	unread := w.events > w.read
	w.mu.Unlock()
	if f != nil && unread {
		f()
	}
}

// TestReaderEvents: a message is read as its bytes come, whatever the pieces, no byte more, and the end of the stream and a
// reset are seen.
func TestReaderEvents(t *testing.T) {
	testkind.System(t)
	decline, err := wire.Decline{Version: wire.Version1, PeerID: smc.PeerID{1}, Diagnosis: smc.DiagMem}.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, piece := range []int{1, 3, wire.HeaderLen, wire.HeaderLen + 1, 2 * len(decline)} {
		for _, reset := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d bytes at a time, reset %t", piece, reset), func(t *testing.T) {
				ln, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				defer ln.Close()
				peer, err := net.Dial("tcp", ln.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				defer peer.Close()
				c, err := ln.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				r := tcpReader{tcp: watch(t, c.(*net.TCPConn))}
				defer r.close()
				next := func(q readRequest) readResult {
					t.Helper()
					r.request(q)
					select {
					case res := <-r.got:
						return r.finish(res)
					case <-time.After(testkind.Patience):
						t.Fatal("nothing is read")
						return readResult{}
					}
				}
				go func() {
					for b := slices.Concat(decline, decline); len(b) > 0; {
						n := min(piece, len(b))
						if _, err := peer.Write(b[:n]); err != nil {
							t.Error(err)
						}
						b = b[n:]
						time.Sleep(time.Millisecond) // Real time: the pieces shall come apart.
					}
				}()
				seen := 0
				for seen < wire.HeaderLen {
					res := next(readRequest{look: true, seen: seen})
					if res.err != nil || len(res.b) <= seen || !bytes.HasPrefix(decline, res.b) {
						t.Fatalf("a look after %d bytes: % x, %v", seen, res.b, res.err)
					}
					seen = len(res.b)
				}
				for range 2 {
					if res := next(readRequest{}); res.err != nil || !bytes.Equal(res.b, decline) {
						t.Fatalf("read % x, %v, want % x", res.b, res.err, decline)
					}
				}
				want := io.EOF
				if reset {
					want = syscall.ECONNRESET
					_ = peer.(*net.TCPConn).SetLinger(0)
				}
				peer.Close()
				if res := next(readRequest{}); !errors.Is(res.err, want) {
					t.Errorf("%v, want %v", res.err, want)
				}
			})
		}
	}
}

// TestReaderLeaves: a reader that has read all there was says so to who comes after it, and none misses what follows: bytes, or the end of
// the stream, be it there with the message or later.
func TestReaderLeaves(t *testing.T) {
	testkind.System(t)
	decline, err := wire.Decline{Version: wire.Version1, PeerID: smc.PeerID{1}, Diagnosis: smc.DiagMem}.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name        string
		with, later func(peer *net.TCPConn) error // what follows the message
		left        bool                          // at once
	}{
		{"bytes later", nil, func(peer *net.TCPConn) error { _, err := peer.Write([]byte{1}); return err }, false},
		{"the end later", nil, (*net.TCPConn).CloseWrite, false},
		{"the end with it", (*net.TCPConn).CloseWrite, nil, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			peer, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer peer.Close()
			c, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			do := func(f func(*net.TCPConn) error) {
				t.Helper()
				if f == nil {
					return
				}
				if err := f(peer.(*net.TCPConn)); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := peer.Write(decline); err != nil {
				t.Fatal(err)
			}
			do(test.with)
			w := watch(t, c.(*net.TCPConn))
			events := func() uint64 { n, _ := w.Events(); return n }
			testkind.Eventually(t, "an event", func() (any, bool) { n, plain := w.Events(); return n, n > 0 && plain == (test.with == nil) })
			r := tcpReader{tcp: w}
			r.request(readRequest{})
			if res := r.finish(<-r.got); res.err != nil || !bytes.Equal(res.b, decline) {
				t.Fatalf("read % x, %v", res.b, res.err)
			}
			r.close()
			before := events()
			told := make(chan bool, 8)
			w.Notify(func() { told <- true }, 0)
			if got := len(told) > 0; got != test.left && events() == before {
				t.Errorf("something is left to read: %t, want %t", got, test.left)
			}
			do(test.later)
			select {
			case <-told:
			case <-time.After(testkind.Patience):
				t.Error("what follows is no event")
			}
			w.Notify(nil, 0)
		})
	}
}

// TestReaderRest: what has arrived when a read is stopped is found, also if the read has not looked
// again, and not a byte behind the message. A host that stands still while the peer declines would
// otherwise decline as well, after the peer has stopped to wait for that, and its program would read
// a DECLINE.
func TestReaderRest(t *testing.T) {
	testkind.System(t)
	const data = "data of the program"
	decline, err := wire.Decline{Version: wire.Version1, PeerID: smc.PeerID{1}, Diagnosis: smc.DiagMem}.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	test := func(t *testing.T, peer io.Writer, tcp TCPConn) {
		r := tcpReader{tcp: tcp}
		defer r.close()
		send := func(b []byte) {
			t.Helper()
			if _, err := peer.Write(b); err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		if got := r.rest(); len(got) != 0 {
			t.Errorf("%d bytes before any were sent", len(got))
		}
		r.request(readRequest{})
		if got := r.stop(); len(got) != 0 {
			t.Errorf("%d bytes before any were sent", len(got))
		}
		_ = tcp.SetReadDeadline(longAgo) // the deadline of stop, before the read has looked again
		send(decline[:10])
		if got := r.rest(); !bytes.Equal(got, decline[:10]) {
			t.Errorf("% x of a message, want % x", got, decline[:10])
		}
		send(append(decline[10:], data...))
		if got := r.rest(); !bytes.Equal(got, decline[10:]) {
			t.Errorf("the rest is % x, want % x", got, decline[10:])
		}
		if r.took != len(decline) {
			t.Errorf("%d bytes taken, want %d", r.took, len(decline))
		}
		_ = tcp.SetReadDeadline(time.Time{})
		left := make([]byte, len(data))
		if _, err := io.ReadFull(tcp, left); err != nil || string(left) != data {
			t.Errorf("then the program reads %q, %v", left, err)
		}
	}
	kernel := func(t *testing.T, of func(c net.Conn) TCPConn) {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		peer, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer peer.Close()
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		test(t, peer, of(c))
	}
	t.Run("kernel", func(t *testing.T) {
		kernel(t, func(c net.Conn) TCPConn { return c.(TCPConn) })
	})
	t.Run("engine", func(t *testing.T) {
		kernel(t, func(c net.Conn) TCPConn { return watch(t, c.(*net.TCPConn)) })
	})
	t.Run("simulated", func(t *testing.T) {
		bubble(t, func(t *testing.T) {
			b := newBed(t, bedConfig{})
			c, s := b.tcp()
			test(t, c, s)
			_, _ = c.Close(), s.Close()
		})
	})
}
