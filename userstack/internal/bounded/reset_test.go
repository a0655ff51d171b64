// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"errors"
	"os"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
)

// held makes a thread of the process hold the lock of a socket until release is called:
// the thread sends memory that is not available yet.
func held(t *testing.T, fd int) (release func()) {
	t.Helper()
	const api, register, unregister = 0xc018aa3f, 0xc020aa00, 0x8010aa01 // UFFDIO_ of linux/userfaultfd.h
	mem, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	u, _, e := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if e != 0 {
		t.Skipf("no userfaultfd: %v", e)
	}
	call := func(req uintptr, arg [4]uint64) {
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, u, req, uintptr(unsafe.Pointer(&arg))); e != 0 {
			t.Fatalf("ioctl %#x: %v", req, e)
		}
	}
	at := uint64(uintptr(unsafe.Pointer(&mem[0])))
	call(api, [4]uint64{0xaa})
	call(register, [4]uint64{at, uint64(len(mem)), 1})
	var sent unix.Errno
	over, begun := make(chan struct{}), make(chan int)
	go func() {
		defer close(over)
		runtime.LockOSThread()
		begun <- unix.Gettid()
		_, _, sent = unix.Syscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&mem[0])), uintptr(len(mem)), 0, 0, 0)
	}()
	<-begun
	time.Sleep(50 * time.Millisecond)
	done := false
	release = func() {
		if done {
			return
		}
		done = true
		call(unregister, [4]uint64{at, uint64(len(mem))})
		_ = unix.Close(int(u))
		<-over
		if sent != 0 {
			t.Logf("send: %v", sent)
		}
		_ = unix.Munmap(mem)
	}
	t.Cleanup(release)
	return release
}

// TestResetConn: the peer sees a reset. If the lock of the socket is held, nobody waits
// for it, and other resets are not delayed. The reset follows when the lock is released.
func TestResetConn(t *testing.T) {
	wantReset := func(c interface {
		Read([]byte) (int, error)
		SetReadDeadline(time.Time) error
	}) {
		t.Helper()
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		b := make([]byte, 1<<16)
		for {
			_, err := c.Read(b)
			if errors.Is(err, unix.ECONNRESET) {
				return
			}
			if err != nil {
				t.Errorf("%v, want a reset", err)
				return
			}
		}
	}
	free, peer := socktest.TCPPair(t)
	if err := ResetConn(free); err != nil {
		t.Error(err)
	}
	wantReset(peer)

	locked, lockedPeer := socktest.TCPPair(t)
	f, err := locked.File() // the descriptor of the program
	if err != nil {
		t.Fatal(err)
	}
	release := held(t, int(f.Fd()))
	begin := time.Now()
	if err := ResetConn(locked); err != nil {
		t.Error(err)
	}
	for range 10 {
		other, otherPeer := socktest.TCPPair(t)
		if err := ResetConn(other); err != nil {
			t.Error(err)
		}
		wantReset(otherPeer)
	}
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
	release()
	_ = f.Close()
	wantReset(lockedPeer)
	for end := time.Now().Add(20 * time.Second); stuck.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a reset is under way still")
		}
	}
}
