// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
)

// TestHangUpAtOnce: if a connection fails, the first event that a waiting program gets
// reports the hang-up, the error, and that the socket is writable, as on TCP. The more
// junk there is, the more time the kernel needs from the hang-up until there is room.
func TestHangUpAtOnce(t *testing.T) {
	testkind.System(t)
	for name, pieces := range map[string]int{"as placed": 0, "long": 20000} {
		t.Run(name, func(t *testing.T) { testHangUpAtOnce(t, pieces) })
	}
}

func testHangUpAtOnce(t *testing.T, pieces int) {
	tcp, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(tcp)
	p, err := newPair(tcp, true, true)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	if pieces > 0 {
		// A piece takes some kilobytes at most, with what the kernel keeps of it.
		if err := unix.SetsockoptInt(p.app, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, pieces*4096); err != nil {
			if errors.Is(err, unix.EPERM) {
				t.Skip("needs root for a large buffer")
			}
			t.Fatal(err)
		}
		for range pieces {
			if err := unix.Sendto(p.app, make([]byte, junkLen), unix.MSG_DONTWAIT, nil); err != nil {
				t.Fatal(err)
			}
			p.junk += junkLen
		}
		if err := unix.SetsockoptInt(p.app, unix.SOL_SOCKET, unix.SO_SNDBUF, 1); err != nil {
			t.Fatal(err)
		}
	}
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ep)
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, p.app, &unix.EpollEvent{
		Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET,
	}); err != nil {
		t.Fatal(err)
	}
	first := make(chan uint32, 1)
	tid := make(chan int, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends here
		pin(t, 0)
		tid <- unix.Gettid()
		var ev unix.EpollEvent
		for {
			n, _, e := unix.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(ep), uintptr(unsafe.Pointer(&ev)), 1, 10000, 0, 0)
			if e == unix.EINTR {
				continue
			}
			if n != 1 || e != 0 {
				t.Errorf("epoll: %d, %v", n, e)
			}
			first <- ev.Events
			return
		}
	}()
	waiter := <-tid
	for end := time.Now().Add(patience); !inEpollPwait(t, waiter); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the waiter does not sleep")
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		pin(t, 1)
		p.hangUp(p.app)
	}()
	<-done
	const want = unix.EPOLLOUT | unix.EPOLLERR | unix.EPOLLHUP | unix.EPOLLIN | unix.EPOLLRDHUP
	if got := <-first; got != want {
		t.Errorf("first event %#x, want %#x", got, want)
	}
	if e, err := unix.GetsockoptInt(p.app, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || e != int(unix.ECONNRESET) {
		t.Errorf("SO_ERROR %d, %v", e, err)
	}
	if err := unix.Sendto(p.app, []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil); !errors.Is(err, unix.EPIPE) {
		t.Errorf("send: %v", err)
	}
}

// pin keeps the calling thread on the i-th of the processors that it may use, if
// there are so many, so that whom it wakes runs beside it.
func pin(t *testing.T, i int) {
	t.Helper()
	var may, set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		t.Error(err)
		return
	}
	for cpu := range 8 * int(unsafe.Sizeof(may)) {
		if !may.IsSet(cpu) {
			continue
		}
		if i == 0 {
			set.Set(cpu)
			if err := unix.SchedSetaffinity(0, &set); err != nil {
				t.Error(err)
			}
			return
		}
		i--
	}
}

// inEpollPwait reports whether a thread of this process sleeps in epoll_pwait().
func inEpollPwait(t *testing.T, tid int) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/self/task/" + strconv.Itoa(tid) + "/syscall")
	if err != nil {
		t.Fatal(err)
	}
	nr, _, _ := strings.Cut(string(b), " ")
	n, err := strconv.Atoi(nr) // or it is running
	return err == nil && n == unix.SYS_EPOLL_PWAIT
}

// TestPairDescriptors: a program sends a socket with a linger time and unsent data to the launcher's
// end of a pair, as its last owner. The launcher that closes the end does not wait for it.
func TestPairDescriptors(t *testing.T) {
	testkind.System(t)
	tcp, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(tcp)
	for _, clog := range []bool{false, true} {
		p, err := newPair(tcp, true, clog)
		if err != nil {
			t.Fatal(err)
		}
		if clog { // another process can change the buffer
			if err := unix.SetsockoptInt(p.app, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<20); err != nil {
				t.Fatal(err)
			}
		}
		socktest.SendLingering(t, p.app, 2)
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.hangUp(p.app)
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatal("the launcher waits for a socket of the program")
		}
		p.close()
	}
}
