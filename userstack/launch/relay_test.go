// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/relay"
)

// TestLastBytes: the peer gets all bytes that a program wrote before it closed, also if
// the peer has sent data that the program did not read.
func TestLastBytes(t *testing.T) {
	testkind.System(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range 200 {
		peer, err := net.Dial("tcp4", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		carried, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(peer, "nobody reads"); err != nil {
			t.Fatal(err)
		}
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(fds[0], []byte("last words")); err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(fds[0])
		f, err := carried.(*net.TCPConn).File()
		_ = carried.Close()
		if err != nil {
			t.Fatal(err)
		}
		done := carryOver(t, fds[1], int(f.Fd()))
		_ = f.Close()
		_ = peer.SetDeadline(time.Now().Add(patience))
		got, err := io.ReadAll(peer)
		if string(got) != "last words" {
			t.Fatalf("the peer got %q, %v", got, err)
		}
		<-done
		_ = peer.Close()
	}
}

// carryOver has a relay of the launcher carry between a pair's end, which it closes,
// and a socket. done is closed at the end of it.
func carryOver(t *testing.T, end, sock int) (done chan struct{}) {
	t.Helper()
	app, err := endOf(end)
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := tcpOf(sock)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(end)
	done = make(chan struct{})
	go func() {
		defer close(done)
		(&relay.Relay{App: app, Net: tcp, Broken: func(syscall.Errno) {}}).Run(nil)
	}()
	return done
}

// lastBytes is more than a TCP connection takes whose peer does not read: the
// end of it stands in the pair when the program ends.
const lastBytes = 4 << 20

// TestProgramGone: a peer that reads slowly gets all bytes that a program wrote before it
// ended, if the service carries them, and if the launcher does.
func TestProgramGone(t *testing.T) {
	testkind.System(t)
	for name, stack := range map[string]*fakeStack{
		"service": {}, "launcher": {noPeer: true, estDelay: 40 * ms, decide: ms}, "native": {notCandidate: true},
	} {
		t.Run(name, func(t *testing.T) {
			lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
				return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096) })
			}}
			l, err := lc.Listen(t.Context(), "tcp4", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			got := make(chan int, 1)
			go func() {
				defer close(got)
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(patience))
				total, buf := 0, make([]byte, 64<<10)
				for {
					n, err := c.Read(buf)
					total += n
					if err != nil {
						got <- total
						return
					}
					time.Sleep(ms)
				}
			}()
			probe(t, stack, "writeandgo", l.Addr().String())
			if n := <-got; n != lastBytes {
				t.Errorf("the peer got %d bytes of %d", n, lastBytes)
			}
		})
	}
}

// probeWriteAndGo connects, writes, and ends.
func probeWriteAndGo(args []string) error {
	sa, family, _ := sockaddrOf(args[0])
	fd, _ := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err := unix.Connect(fd, sa); err != unix.EINPROGRESS {
		return fmt.Errorf("connect: %v", err)
	}
	if err := pollOnce(fd); err != nil {
		return err
	}
	for left := make([]byte, lastBytes); len(left) > 0; {
		n, err := unix.Write(fd, left)
		switch {
		case err == unix.EAGAIN || err == unix.EINTR:
			time.Sleep(ms)
		case err != nil:
			return fmt.Errorf("write: %w", err)
		default:
			left = left[n:]
		}
	}
	return nil
}

// TestStopsReading: a program that has shut down reading goes on writing while
// the peer sends.
func TestStopsReading(t *testing.T) {
	testkind.System(t)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	peers, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(peers[0])
	if err := unix.Shutdown(fds[0], unix.SHUT_RD); err != nil {
		t.Fatal(err)
	}
	done := carryOver(t, fds[1], peers[1])
	_ = unix.Close(peers[1])
	limit := unix.Timeval{Sec: 10}
	for _, fd := range []int{fds[0], peers[0]} {
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, 100)
	for range 3 {
		if _, err := unix.Write(peers[0], []byte("nobody reads")); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(fds[0], []byte("still here")); err != nil {
			t.Fatal(err)
		}
		if n, err := unix.Read(peers[0], buf); err != nil || string(buf[:n]) != "still here" {
			t.Fatalf("the peer got %q, %v", buf[:max(n, 0)], err)
		}
	}
	// Unread data would turn the end of the connection into a reset, also on TCP.
	until(t, "what the peer sends is taken", func() bool {
		n, err := unix.IoctlGetInt(peers[0], unix.SIOCOUTQ)
		return err == nil && n == 0
	})
	for _, fd := range []int{fds[0], peers[0]} {
		if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := unix.Read(peers[0], buf); n != 0 || err != nil {
		t.Fatalf("at the end the peer got %q, %v", buf[:max(n, 0)], err)
	}
	<-done
}
