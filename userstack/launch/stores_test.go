// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

func TestStores(t *testing.T) {
	testkind.System(t)
	var x stores
	at := func(id uint64, tid uint32) *notif { return &notif{seccompNotif: seccompNotif{ID: id, PID: tid}} }
	waits := func(n *notif) bool { return x.earlier(n) != nil }
	if waits(at(1, 7)) {
		t.Error("waits for nothing")
	}
	first := x.begin(at(1, 7))
	second := x.begin(at(2, 7)) // of a call that was made anew, and interrupted, too
	over := x.earlier(at(3, 7))
	if !waits(at(1, 7)) || !waits(at(2, 7)) || over == nil {
		t.Error("a store of another notification is not waited for")
	}
	if waits(at(3, 8)) {
		t.Error("waits for another thread")
	}
	first()
	<-over
	if waits(at(2, 7)) || !waits(at(3, 7)) {
		t.Error("the first store has ended, the second has not")
	}
	second()
	if waits(at(3, 7)) || len(x.byThread) != 0 {
		t.Errorf("both have ended: %v is left", x.byThread)
	}
}

// probeLateStore has the kernel fill in an address again and again while signals
// interrupt the call, and makes sure that nobody writes to it afterwards.
func probeLateStore(args []string) error {
	c, err := net.Dial("tcp", args[0])
	if err != nil {
		return err
	}
	defer c.Close()
	rc, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGUSR1) // with SA_RESTART
	var buf struct {
		addr [64]byte
		size uint32
		rest [64]byte
	}
	const canary = 0xa5
	fill := func() {
		for i := range buf.addr {
			buf.addr[i], buf.rest[i] = canary, canary
		}
		buf.size = canary
	}
	calls, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	var late error
	runtime.LockOSThread()
	err = rc.Control(func(fd uintptr) {
		tid, over := unix.Gettid(), make(chan struct{})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for {
				select {
				case <-over:
					return
				default:
					_ = unix.Tgkill(os.Getpid(), tid, unix.SIGUSR1)
					time.Sleep(50 * time.Microsecond)
				}
			}
		}()
		defer func() { close(over); <-ended }()
		for i := range calls {
			fill()
			buf.size = uint32(len(buf.addr))
			_, _, e := unix.RawSyscall(unix.SYS_GETSOCKNAME, fd, uintptr(unsafe.Pointer(&buf.addr)), uintptr(unsafe.Pointer(&buf.size)))
			if e != 0 && e != unix.EINTR {
				late = fmt.Errorf("call %d: %w", i, e)
				return
			}
			fill()
			for range 3 {
				time.Sleep(10 * time.Microsecond)
				for j, b := range buf.addr {
					if b != canary || buf.size != canary {
						late = fmt.Errorf("call %d: somebody has written %#x at %d, size %#x, after the call was over", i, b, j, buf.size)
						return
					}
				}
			}
		}
	})
	if err != nil {
		return err
	}
	return late
}

// TestLateStore: what the launcher writes into the memory of a program is there
// when the call is over, and not later, also when signals interrupt the call.
func TestLateStore(t *testing.T) {
	testkind.System(t)
	addr := echoServer(t, "tcp4", "127.0.0.1:0", "")
	calls := "4000"
	if testing.Short() {
		calls = "1000"
	}
	probe(t, &fakeStack{}, "latestore", addr, calls)
}
