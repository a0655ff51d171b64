// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/relay"
)

// newSocket returns a Socket and the other end of its pair.
func newSocket(t testing.TB, l *Loop) (*Socket, int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fds[1]) })
	s, err := l.NewSocket(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, fds[1]
}

// TestStream carries a stream both ways at once through package oob, which is
// what a relay does with a Socket.
func TestStream(t *testing.T) {
	testkind.System(t)
	l := newLoop(t, DefaultSpin)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*Socket
	for i, fd := range fds {
		if ends[i], err = l.NewSocket(fd); err != nil {
			t.Fatal(err)
		}
		defer ends[i].Close()
	}
	pipe := func(from, to *Socket, seed uint64) {
		data := make([]byte, 1<<20)
		rng := rand.NewChaCha8([32]byte{byte(seed)})
		_, _ = rng.Read(data)
		w, err := relay.NewSocket(from)
		if err != nil {
			t.Fatal(err)
		}
		r, err := relay.NewSocket(to)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			for rest := data; len(rest) > 0; {
				n := min(len(rest), 1+rand.IntN(100000))
				if _, err := w.Write(rest[:n]); err != nil {
					t.Error(err)
					return
				}
				rest = rest[n:]
			}
			if err := from.CloseWrite(); err != nil {
				t.Error(err)
			}
		})
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, data) {
			t.Errorf("%d bytes of %d, %v", len(got), len(data), err)
		}
		wg.Wait()
	}
	var wg sync.WaitGroup
	wg.Go(func() { pipe(ends[0], ends[1], 1) })
	wg.Go(func() { pipe(ends[1], ends[0], 2) })
	wg.Wait()
}

// TestWaitEnds: what waits is ended by Close and by a deadline in the past.
func TestWaitEnds(t *testing.T) {
	testkind.System(t)
	l := newLoop(t, 0)
	for name, c := range map[string]struct {
		end  func(*Socket) error
		want error
	}{
		"close":    {(*Socket).Close, net.ErrClosed},
		"deadline": {func(s *Socket) error { return s.SetReadDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := newSocket(t, l)
			rc, err := s.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			waits := make(chan struct{})
			var once sync.Once
			got := make(chan error, 1)
			go func() {
				got <- rc.Read(func(uintptr) bool { once.Do(func() { close(waits) }); return false })
			}()
			await(t, "the read", waits)
			if err := c.end(s); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-got:
				if !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
			case <-time.After(testkind.Patience):
				t.Fatal("the read goes on")
			}
		})
	}
}

// TestCloseWaitsForUse: the descriptor is not closed under a call that uses it,
// for its number may be another file's then.
func TestCloseWaitsForUse(t *testing.T) {
	testkind.System(t)
	l := newLoop(t, 0)
	s, peer := newSocket(t, l)
	if err := s.Control(func(fd uintptr) {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := unix.Write(int(fd), []byte("x")); err != nil {
			t.Errorf("write in use: %v", err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	var b [2]byte
	if n, err := unix.Read(peer, b[:]); n != 1 || err != nil {
		t.Errorf("the peer reads %d, %v", n, err)
	}
	p := []unix.PollFd{{Fd: int32(peer), Events: unix.POLLIN}}
	for n := 0; n == 0; {
		var err error
		if n, err = unix.Poll(p, int(testkind.Patience/time.Millisecond)); err != nil && err != unix.EINTR || n == 0 && err == nil {
			t.Fatalf("poll: %d, %v: not closed", n, err)
		}
	}
	if n, err := unix.Read(peer, b[:]); n != 0 || err != nil {
		t.Errorf("then %d, %v: not closed", n, err)
	}
	if err := s.Control(func(uintptr) { t.Error("called") }); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Control after Close: %v", err)
	}
}

// TestCloseHere: a socket is closed when Close returns, without a goroutine.
func TestCloseHere(t *testing.T) {
	testkind.System(t)
	l := newLoop(t, DefaultSpin)
	for i := range 100 {
		s, other := newSocket(t, l)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		p := []unix.PollFd{{Fd: int32(other)}}
		if _, err := unix.Poll(p, 0); err != nil || p[0].Revents&unix.POLLHUP == 0 {
			t.Fatalf("close %d has not happened yet: %#x, %v", i, p[0].Revents, err)
		}
	}
}

// TestSendLast: the last bytes of a stream and its end are one packet, as the segments that the other end has received show.
func TestSendLast(t *testing.T) {
	testkind.System(t)
	l := newLoop(t, DefaultSpin)
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for _, last := range []bool{false, true} {
		c, err := net.DialTCP("tcp4", nil, listener.Addr().(*net.TCPAddr))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		peer, err := listener.AcceptTCP()
		if err != nil {
			t.Fatal(err)
		}
		defer peer.Close()
		f, err := peer.File() // which does not block: the socket is the same
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		s, err := l.NewSocket(fd)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		segments := func() (n uint32) {
			rc, err := c.SyscallConn()
			if err == nil {
				err = rc.Control(func(fd uintptr) {
					info, ierr := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
					if ierr != nil {
						t.Fatal(ierr)
					}
					n = info.Segs_in
				})
			}
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		before := segments()
		send := s.Send
		if last {
			send = s.SendLast
		}
		var m Message
		if err := s.Control(func(uintptr) {
			for _, part := range []string{"he", "llo"} {
				if n, errno := send(&m, []byte(part), nil); n != len(part) || errno != 0 {
					t.Errorf("sent %d: %v", n, errno)
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		if err := s.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); string(b) != "hello" || err != nil {
			t.Errorf("read %q, %v", b, err)
		}
		want := uint32(3)
		if last {
			want = 1
		}
		if got := segments() - before; got != want {
			t.Errorf("last %v: %d segments, want %d", last, got, want)
		}
	}
}
