// SPDX-License-Identifier: Apache-2.0

package socktest

import (
	"os"
	"runtime"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Hold makes a thread of this process hold the lock of a connected TCP socket until release is
// called: the thread sends memory that is not available yet. It skips the test if the kernel
// does not allow that.
func Hold(t testing.TB, fd int) (release func()) {
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
	ioctl := func(req uintptr, arg [4]uint64) {
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, u, req, uintptr(unsafe.Pointer(&arg))); e != 0 {
			t.Fatalf("ioctl %#x: %v", req, e)
		}
	}
	at := uint64(uintptr(unsafe.Pointer(&mem[0])))
	ioctl(api, [4]uint64{0xaa})
	ioctl(register, [4]uint64{at, uint64(len(mem)), 1})
	var failed unix.Errno
	over := make(chan struct{})
	go func() {
		defer close(over)
		runtime.LockOSThread()
		_, _, failed = unix.Syscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&mem[0])), uintptr(len(mem)), unix.MSG_NOSIGNAL, 0, 0)
	}()
	release = sync.OnceFunc(func() {
		ioctl(unregister, [4]uint64{at, uint64(len(mem))})
		_ = unix.Close(int(u))
		<-over
		if failed != 0 {
			t.Logf("the call that had the lock: %v", failed)
		}
		_ = unix.Munmap(mem)
	})
	t.Cleanup(release)
	// The kernel says how many threads wait for a page (UFFD_EVENT_PAGEFAULT).
	p := []unix.PollFd{{Fd: int32(u), Events: unix.POLLIN}}
	if err := unix.SetNonblock(int(u), true); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; {
		if n, err := unix.Poll(p, 1000); n == 1 && p[0].Revents&unix.POLLIN != 0 {
			return release
		} else if time.Now().After(end) {
			t.Fatalf("the call waits for no page: %d, %v", n, err)
		}
	}
}
