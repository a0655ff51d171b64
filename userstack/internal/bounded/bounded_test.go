// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
)

// threads returns the number of OS threads of this process.
func threads(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		n := 0
		if _, err := fmt.Sscanf(line, "Threads: %d", &n); err == nil {
			return n
		}
	}
	t.Fatalf("no number of threads in\n%s", b)
	return 0
}

// TestCloseLingering: a descriptor is closed at once, with any SO_LINGER, and the peer
// gets the data that was sent.
func TestCloseLingering(t *testing.T) {
	before := threads(t)
	var all []int
	var peers []*net.TCPConn
	var sizes []int
	for range 60 {
		fd, peer, size := socktest.Lingering(t)
		all, peers, sizes = append(all, fd), append(peers, peer), append(sizes, size)
	}
	var wg sync.WaitGroup
	for _, d := range all {
		wg.Go(func() {
			if err := Close(d); err != nil {
				t.Error(err)
			}
		})
	}
	closed := make(chan struct{})
	go func() { defer close(closed); wg.Wait() }()
	select {
	case <-closed:
	case <-time.After(testkind.Patience):
		t.Error("close waits for the peer")
	}
	if n := threads(t); n > before+maxLingering+20 {
		t.Errorf("%d threads, %d before", n, before)
	}
	for i, p := range peers {
		if err := p.SetReadDeadline(time.Now().Add(testkind.Patience)); err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, p); err != nil || int(n) != sizes[i] {
			t.Fatalf("the peer got %d of %d bytes, %v", n, sizes[i], err)
		}
	}
	<-closed
}

// TestCloseQueued: the same for the end of a pair with such sockets in its queue, and for
// these sockets when they are received.
func TestCloseQueued(t *testing.T) {
	testkind.System(t)
	const hour = "close waits for sockets in the queue"
	within := func(f func()) {
		t.Helper()
		done := make(chan struct{})
		go func() { defer close(done); f() }()
		select {
		case <-done:
		case <-time.After(testkind.Patience):
			t.Fatal(hour)
		}
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	socktest.SendLingering(t, pair[0], 1)
	within(func() {
		if err := Close(pair[1]); err != nil {
			t.Error(err)
		}
	})
}

// TestConnectBlocking: a launcher that clears O_NONBLOCK while the service connects its
// socket does not block a thread of the service.
func TestConnectBlocking(t *testing.T) {
	testkind.System(t)
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(l)
	if err := unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(l, 0); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(l)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	var fds []int
	for range 3 { // there are one or two free places
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		fds = append(fds, fd)
	}
	go func() {
		for _, fd := range fds {
			var err error
			// Like Connect, with the flag cleared in between.
			w := connectWake{fd: fd, begin: time.Now()}
			Call(connecting, func() { err = unix.Connect(fd, sa) }, w.wake)
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	select {
	case err := <-done:
		if err == nil {
			t.Error("connected to a socket that takes no more")
		}
	case <-time.After(testkind.Patience):
		t.Fatal("connect waits")
	}
}

// TestConnectStarved: a connect that takes seconds, because its thread gets no processor, is not
// ended. One whose program clears O_NONBLOCK again and again is, and then it is an error.
func TestConnectStarved(t *testing.T) {
	a, b := socktest.TCPPair(t)
	f, err := a.File() // and it is blocking
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd := int(f.Fd())
	w := connectWake{fd: fd, begin: time.Now().Add(-connectTime / 2)}
	for range 10 * clearedMost {
		w.wake(unix.Gettid())
	}
	if w.ended {
		t.Fatal("ended, though nobody has cleared the flag")
	}
	if _, err := b.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	var buf [1]byte
	if _, err := io.ReadFull(a, buf[:]); err != nil {
		t.Errorf("the connection is over: %v", err)
	}
	for range clearedMost + 1 {
		if err := unix.SetNonblock(fd, false); err != nil {
			t.Fatal(err)
		}
		w.wake(unix.Gettid())
	}
	if !w.ended {
		t.Error("a program that clears the flag again and again keeps a thread")
	}
	late := connectWake{fd: fd, begin: time.Now().Add(-2 * connectTime)}
	if late.wake(unix.Gettid()); !late.ended {
		t.Error("no limit")
	}
}

// wantFiles waits until this process has at most most descriptors.
func wantFiles(t *testing.T, most int) {
	t.Helper()
	testkind.Eventually(t, fmt.Sprintf("more than %d descriptors", most), func() (any, bool) {
		n := socktest.OpenFiles(t)
		return n, n <= most
	})
}

// TestRecvDescriptors: descriptors that arrive with data are closed, and the read does
// not wait for that.
func TestRecvDescriptors(t *testing.T) {
	testkind.System(t)
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	const count = 20
	socktest.SendLingering(t, pair[0], count)
	before := socktest.OpenFiles(t)
	var buf [10]byte
	var msg unix.Msghdr
	iov := unix.Iovec{Base: &buf[0]}
	iov.SetLen(len(buf))
	msg.Iov = &iov
	msg.SetIovlen(1)
	read := make(chan struct{})
	go func() {
		defer close(read)
		n, came, errno := Recvmsg(pair[1], &msg)
		if n != 1 || !came || errno != 0 || buf[0] != 'x' {
			t.Errorf("%d, %v, %v: %q", n, came, errno, buf[:1])
		}
	}()
	select {
	case <-read:
	case <-time.After(testkind.Patience):
		t.Fatal("the read waits for a close")
	}
	wantFiles(t, before)
	if _, err := unix.Write(pair[0], []byte("yz")); err != nil {
		t.Fatal(err)
	}
	if n, came, errno := Recvmsg(pair[1], &msg); n != 2 || came || errno != 0 {
		t.Errorf("%d, %v, %v", n, came, errno)
	}
	if _, _, errno := Recvmsg(pair[1], &msg); errno != unix.EAGAIN {
		t.Errorf("of an empty socket: %v", errno)
	}
}

// closeHere says on here whether CloseAside has closed fd before it returned.
func closeHere(fd int, here chan<- bool) {
	CloseAside(fd, func() { here <- bytes.Contains(debug.Stack(), []byte("bounded.closeHere(")) })
}

// TestCloseAside: a close that does not have to wait is complete at the return. A close
// that has to wait continues elsewhere.
func TestCloseAside(t *testing.T) {
	unixSocket := func(t *testing.T) (fd, peer int) {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(pair[1]) })
		return pair[0], pair[1]
	}
	tcpSocket := func(t *testing.T) int {
		c, _ := socktest.TCPPair(t)
		f, err := c.File()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		_ = c.Close()
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	for name, tt := range map[string]struct {
		open  func(t *testing.T) int
		waits bool
	}{
		"unix": {func(t *testing.T) int { fd, _ := unixSocket(t); return fd }, false},
		"unix, lingering sockets in the queue": {func(t *testing.T) int {
			fd, peer := unixSocket(t)
			socktest.SendLingering(t, peer, 2)
			return fd
		}, true},
		"TCP": {tcpSocket, false},
		"TCP, reset": {func(t *testing.T) int {
			fd := tcpSocket(t)
			if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
				t.Fatal(err)
			}
			return fd
		}, false},
		"TCP, lingering": {func(t *testing.T) int { fd, _, _ := socktest.Lingering(t); return fd }, true},
	} {
		t.Run(name, func(t *testing.T) {
			fd := tt.open(t)
			inode := func() uint64 {
				var st unix.Stat_t
				if unix.Fstat(fd, &st) != nil {
					return 0
				}
				return st.Ino
			}
			was := inode()
			here := make(chan bool, 1) // whether then is called by this goroutine
			returned := make(chan struct{})
			go func() {
				defer close(returned)
				closeHere(fd, here)
			}()
			select {
			case <-returned:
			case <-time.After(testkind.Patience):
				t.Fatal("it waits for the close")
			}
			select {
			case h := <-here:
				switch {
				case h && tt.waits:
					t.Error("it was closed here, where it may wait")
				case !h && !tt.waits:
					t.Error("it was closed elsewhere")
				}
				if inode() == was {
					t.Error("it is still open")
				}
			case <-time.After(testkind.Patience):
				t.Fatal("the close waits")
			}
		})
	}
}
