// SPDX-License-Identifier: Apache-2.0

package relay

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
)

// unixPair returns a socketpair; the first end is in Go's poller.
func unixPair(t *testing.T) (net.Conn, net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		ends[i] = c
	}
	return ends[0], ends[1]
}

func tcpPair(t *testing.T) (net.Conn, net.Conn) {
	a, b := socktest.TCPPair(t)
	return a, b
}

type sysConn interface {
	net.Conn
	CloseWrite() error
}

func wrap(t *testing.T, c net.Conn) *Socket {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	var s *Socket
	var err error
	switch c := c.(type) {
	case *net.TCPConn:
		s, err = NewSocket(c)
	case *net.UnixConn:
		s, err = NewSocket(Unix(c))
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestCopy carries a stream with urgent bytes over all kinds of sockets: each
// byte arrives once, in its place. A byte is told as urgent unless the next
// one followed before it was read, and no other byte is.
func TestCopy(t *testing.T) {
	socktest.NeedOOB(t)
	pairs := map[string]func(*testing.T) (net.Conn, net.Conn){"unix": unixPair, "tcp": tcpPair}
	for _, names := range [][2]string{{"unix", "tcp"}, {"tcp", "unix"}, {"unix", "unix"}} {
		for _, calm := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s to %s, calm %v", names[0], names[1], calm), func(t *testing.T) {
				in, relayIn := pairs[names[0]](t)
				relayOut, out := pairs[names[1]](t)
				from, to := wrap(t, relayIn), wrap(t, relayOut)
				done := make(chan error, 1)
				go func() {
					err := Copy(to, from)
					_ = relayOut.(sysConn).CloseWrite()
					done <- err
				}()
				seen := make(chan struct{}, 1)
				want := make([]byte, 0, 1<<20)
				marks := map[int]bool{}
				sender := make(chan error, 1)
				src := wrap(t, in)
				rng := rand.New(rand.NewPCG(1, 2))
				rounds := 600
				go func() {
					var err error
					for i := 0; i < rounds && err == nil; i++ {
						b := make([]byte, 1+rng.IntN(3000))
						for k := range b {
							b[k] = byte(rng.Uint32())
						}
						want = append(want, b...)
						if rng.IntN(3) > 0 {
							_, err = src.Write(b)
							continue
						}
						marks[len(want)-1] = true
						if _, err = src.WriteUrgent(b); calm {
							<-seen
						}
					}
					_ = in.(sysConn).CloseWrite()
					sender <- err
				}()
				dst := wrap(t, out)
				var got []byte
				var urgent []int
				buf := make([]byte, 2000)
				for {
					n, u, err := dst.ReadMark(buf)
					if err == io.EOF {
						break
					}
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, buf[:n]...)
					if u {
						urgent = append(urgent, len(got)-1)
						if calm {
							seen <- struct{}{}
						}
					}
				}
				if err := <-sender; err != nil {
					t.Fatal(err)
				}
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, want) {
					t.Fatalf("stream of %d bytes differs from the %d sent", len(got), len(want))
				}
				for _, at := range urgent {
					if !marks[at] {
						t.Errorf("byte %d came as urgent", at)
					}
				}
				if calm && len(urgent) != len(marks) || len(urgent) == 0 {
					t.Errorf("%d of %d urgent bytes were told", len(urgent), len(marks))
				}
			})
		}
	}
}

// TestReadAllocs: reading allocates nothing.
func TestReadAllocs(t *testing.T) {
	testkind.System(t)
	a, b := unixPair(t)
	s := wrap(t, b)
	buf := make([]byte, 100)
	if n := testing.AllocsPerRun(200, func() {
		if _, err := a.Write(buf); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.ReadMark(buf); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations a read", n)
	}
}

// TestDropUrgent: a reader that takes no notice of urgent bytes finds in its
// stream what TCP would have it find, whether or not it had read all before an
// urgent byte when the next one came.
func TestDropUrgent(t *testing.T) {
	socktest.NeedOOB(t)
	fdOf := func(c net.Conn) (fd int) {
		rc, err := c.(syscall.Conn).SyscallConn()
		if err == nil {
			err = rc.Control(func(n uintptr) { fd = int(n) })
		}
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	// A number is how many bytes are read; !x is urgent.
	for _, steps := range [][]string{
		{"data", "!1", "4", "data", "!2", "4", "data", "!3", "4", "end", "3"},
		{"data", "!1", "4", "data", "!2", "data", "!3", "end", "12"},
		{"data", "!1", "data", "!2", "9", "data", "!3", "end", "7"},
		{"!1", "!2", "!3", "end", "3"},
		{"data", "!1", "3", "!2", "data", "6"},
		{"!1", "oob 1", "data", "!2", "4", "oob 2", "!3", "end", "3"},
		{"inline", "data", "!1", "4", "data", "!2", "6"},
	} {
		var got [2][]string
		for i, pair := range []func(*testing.T) (net.Conn, net.Conn){tcpPair, unixPair} {
			in, out := pair(t)
			from := wrap(t, in) // which sets a deadline
			fd := fdOf(out)
			calls := 0
			if i == 1 {
				from.DropUrgent = func() { calls++; DropUrgent(fd) }
			}
			read := func(n, flags int) {
				b := make([]byte, n)
				var m int
				for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
					k, _, err := unix.Recvfrom(fd, b[m:], flags|unix.MSG_DONTWAIT)
					m += max(k, 0)
					if m == n || err != unix.EAGAIN && err != nil && err != unix.EINVAL || time.Now().After(end) {
						break
					}
				}
				if m < n {
					t.Errorf("%q: %d bytes after %q, want %d", steps, m, got[i], n)
				}
				got[i] = append(got[i], string(b[:m]))
			}
			for _, step := range steps {
				n, err := strconv.Atoi(step)
				switch {
				case err == nil:
					read(n, 0)
				case strings.HasPrefix(step, "oob "):
					read(1, unix.MSG_OOB)
				case step == "inline":
					if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1); err != nil {
						t.Fatal(err)
					}
				case step[0] == '!':
					if _, err := from.WriteUrgent([]byte(step[1:])); err != nil {
						t.Fatal(err)
					}
					arrived(t, fd)
				default:
					if _, err := from.Write([]byte(step)); err != nil {
						t.Fatal(err)
					}
				}
			}
			if i == 1 && calls == 0 {
				t.Errorf("%q: never asked to pass a mark", steps)
			}
		}
		if !slices.Equal(got[0], got[1]) {
			t.Errorf("%q: read %q, over TCP %q", steps, got[1], got[0])
		}
	}
}

// arrived waits until an urgent byte is there.
func arrived(t *testing.T, fd int) {
	t.Helper()
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLPRI}}
	for {
		n, err := unix.Poll(p, 10000)
		if err == unix.EINTR {
			continue
		}
		if n != 1 || err != nil {
			t.Fatalf("no urgent byte: %d, %v", n, err)
		}
		return
	}
}
