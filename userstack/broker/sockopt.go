// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SetSockopt sets a socket option with the value as the program gave it. An
// error is a syscall.Errno, or os.ErrClosed.
func SetSockopt(d *Descriptor, level, name int, value []byte) error {
	return d.Control(func(fd int) error {
		var p unsafe.Pointer
		if len(value) > 0 {
			p = unsafe.Pointer(&value[0])
		}
		_, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name), uintptr(p), uintptr(len(value)), 0)
		runtime.KeepAlive(value)
		if e != 0 {
			return e
		}
		return nil
	})
}

// GetSockopt reads a socket option into at most size bytes and returns as
// many as the kernel filled in. Some options take their argument from the
// buffer; it begins as zeros here.
func GetSockopt(d *Descriptor, level, name, size int) ([]byte, error) {
	if size < 0 || size > MaxValue {
		return nil, syscall.EINVAL
	}
	buf := make([]byte, max(size, 1))
	n := uint32(size)
	err := d.Control(func(fd int) error {
		_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
			uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&n)), 0)
		if e != 0 {
			return e
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return buf[:min(int(n), size)], nil
}

// ConnectSocket connects a program's TCP socket without changing what the
// program sees of it: O_NONBLOCK is as before when it returns. It returns the
// errno of a refused or failed connection as a syscall.Errno; when ctx ends
// first, its cause. In both cases the attempt is taken back (connect to
// AF_UNSPEC), so that the program may use the socket for another.
func ConnectSocket(ctx context.Context, d *Descriptor, remote netip.AddrPort) error {
	var poll int // a duplicate to wait on, outside the Descriptor's lock
	err := d.Control(func(fd int) error {
		sa, err := sockaddr(fd, remote)
		if err != nil {
			return err
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err != nil {
			return os.NewSyscallError("fcntl F_GETFL", err)
		}
		if flags&unix.O_NONBLOCK == 0 {
			// A blocking connect cannot be bounded by ctx. The program's thread
			// waits in its own connect() and cannot see this.
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags|unix.O_NONBLOCK); err != nil {
				return os.NewSyscallError("fcntl F_SETFL", err)
			}
			defer unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags) //nolint:errcheck // it was set a moment ago
		}
		if err := unix.Connect(fd, sa); err != nil {
			return err
		}
		return nil
	})
	if !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	if poll, err = d.Dup(); err != nil {
		return err
	}
	defer unix.Close(poll)
	if err := awaitConnect(ctx, poll); err != nil {
		// Take back what is under way, and what the kernel remembers: it would
		// answer the next connect() with ECONNABORTED.
		var unspec unix.RawSockaddr // AF_UNSPEC is 0
		_, _, _ = unix.Syscall(unix.SYS_CONNECT, uintptr(poll), uintptr(unsafe.Pointer(&unspec)), unsafe.Sizeof(unspec))
		return err
	}
	// The kernel moves the socket to "connected" only in a further connect(),
	// or the program's next one would succeed instead of EISCONN.
	return d.Control(func(fd int) error {
		sa, err := sockaddr(fd, remote)
		if err != nil {
			return err
		}
		if err := unix.Connect(fd, sa); err != nil && !errors.Is(err, unix.EISCONN) {
			return err
		}
		return nil
	})
}

// awaitConnect waits until the attempt on fd ended or ctx did.
func awaitConnect(ctx context.Context, fd int) error {
	ev, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woken)
		one := [8]byte{1, 1, 1, 1, 1, 1, 1, 1}
		_, _ = unix.Write(ev, one[:])
	})
	defer func() {
		if !stop() {
			<-woken
		}
		_ = unix.Close(ev)
	}()
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}, {Fd: int32(ev), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, int(time.Minute/time.Millisecond))
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return os.NewSyscallError("poll", err)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && fds[0].Revents != 0:
			e, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
			if err != nil {
				return os.NewSyscallError("getsockopt SO_ERROR", err)
			}
			if e != 0 {
				return syscall.Errno(e)
			}
			return nil
		}
	}
}

// sockaddr converts ap for the family of socket fd.
func sockaddr(fd int, ap netip.AddrPort) (unix.Sockaddr, error) {
	family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return nil, os.NewSyscallError("getsockopt SO_DOMAIN", err)
	}
	a := ap.Addr()
	switch {
	case family == unix.AF_INET && a.Unmap().Is4():
		return &unix.SockaddrInet4{Port: int(ap.Port()), Addr: a.Unmap().As4()}, nil
	case family == unix.AF_INET6 && a.IsValid():
		sa := &unix.SockaddrInet6{Port: int(ap.Port()), Addr: a.As16()}
		if z := a.Zone(); z != "" {
			id, err := strconv.ParseUint(z, 10, 32)
			if err != nil {
				return nil, fmt.Errorf("broker: the zone of %v is not an interface index: %w", ap, syscall.EINVAL)
			}
			sa.ZoneId = uint32(id)
		}
		return sa, nil
	default:
		return nil, fmt.Errorf("broker: %v does not fit a socket of family %d: %w", ap, family, syscall.EAFNOSUPPORT)
	}
}
