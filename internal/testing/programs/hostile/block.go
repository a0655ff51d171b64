// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

const (
	// blocked is the number of connections over SMC for kinds deaf and locked, pendings
	// the number of connections without an answer.
	blocked  = 20
	pendings = 2000
)

// block makes the end of the stack wait. It returns only after an error.
func block(kind string, addr netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cl, err := broker.DialStack(ctx, "hostile")
	if err != nil {
		return err
	}
	switch kind {
	case "pending":
		err = pend(ctx, cl, addr)
	case "deaf":
		for range blocked {
			if err = deaf(cl, addr, nil); err != nil {
				break
			}
		}
	case "locked":
		for range blocked {
			if err = deaf(cl, addr, lock); err != nil {
				break
			}
		}
	default:
		err = fmt.Errorf("no kind %q", kind)
	}
	if err != nil {
		return err
	}
	fmt.Println("blocking")
	select {}
}

// deaf makes a connection over SMC whose peer sends. It reads nothing, and makes the
// service's end of the pair block. then gets the TCP socket.
func deaf(cl *broker.Client, addr netip.AddrPort, then func(sock int) error) error {
	sock, err := freshSocket()
	if err != nil {
		return err
	}
	c, err := cl.Connect(sock, broker.ConnectRequest{Remote: addr})
	if err != nil {
		return err
	}
	for ready := false; !ready; {
		ev, ok := <-c.Events()
		switch {
		case !ok, ev.Kind != broker.EventEstablished && ev.Kind != broker.EventReady, ev.Kind == broker.EventEstablished && !ev.PeerSMC:
			return fmt.Errorf("not over SMC: %+v", ev)
		case ev.Kind == broker.EventEstablished:
			if err := c.Proceed(); err != nil {
				return err
			}
		default:
			ready = true
		}
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.SetNonblock(pair[1], true); err != nil {
		return err
	}
	if err := c.Attach(pair[1]); err != nil {
		return err
	}
	go func() {
		for {
			_ = unix.SetNonblock(pair[1], false)
			_ = unix.SetNonblock(sock, false)
			time.Sleep(time.Millisecond)
		}
	}()
	if then != nil {
		return then(sock)
	}
	return nil
}

// lock makes a thread hold the lock of the socket: the thread sends memory that never
// becomes available.
func lock(sock int) error {
	mem, err := absent()
	if err != nil {
		return err
	}
	var held atomic.Bool
	go func() {
		runtime.LockOSThread()
		held.Store(true)
		_, _, e := unix.Syscall6(unix.SYS_SENDTO, uintptr(sock), uintptr(unsafe.Pointer(&mem[0])), uintptr(len(mem)), 0, 0, 0)
		fmt.Println("the lock was let go:", e)
	}()
	for !held.Load() {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond)
	return nil
}

// Constants of linux/userfaultfd.h.
const (
	uffdAPI        = 0xaa
	uffdioAPI      = 0xc018aa3f
	uffdioRegister = 0xc020aa00
	uffdMissing    = 1
)

// absent returns memory whose every access waits for ever.
func absent() ([]byte, error) {
	mem, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	fd, _, e := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC, 0, 0)
	if e != 0 {
		return nil, os.NewSyscallError("userfaultfd", e)
	}
	api := [3]uint64{uffdAPI}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, fd, uffdioAPI, uintptr(unsafe.Pointer(&api))); e != 0 {
		return nil, os.NewSyscallError("ioctl UFFDIO_API", e)
	}
	reg := [4]uint64{uint64(uintptr(unsafe.Pointer(&mem[0]))), uint64(len(mem)), uffdMissing}
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, fd, uffdioRegister, uintptr(unsafe.Pointer(&reg))); e != 0 {
		return nil, os.NewSyscallError("ioctl UFFDIO_REGISTER", e)
	}
	return mem, nil
}

// pend begins connections to an address that does not answer.
func pend(ctx context.Context, cl *broker.Client, at netip.AddrPort) error {
	for range pendings {
		sock, err := freshSocket()
		if err != nil {
			return err
		}
		c, err := cl.Connect(sock, broker.ConnectRequest{Remote: at})
		_ = unix.Close(sock)
		if err != nil {
			return err
		}
		select {
		case ev := <-c.Events():
			return fmt.Errorf("a connection does not wait: %+v", ev)
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
	}
	return nil
}
