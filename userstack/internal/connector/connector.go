// SPDX-License-Identifier: Apache-2.0

package connector

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/guard"
	"smcr/userstack/internal/bounded"
	"smcr/userstack/internal/epollset"
)

// A Socket owns a descriptor. Control calls f with the descriptor, which stays open until f
// returns. Dup returns another descriptor of the same description, which the caller must
// close.
type Socket interface {
	Control(f func(fd int) error) error
	Dup() (int, error)
}

// A Connector connects programs' TCP sockets. One goroutine, and no thread, waits
// for all of them (package epollset).
//
// The zero value is ready. It is safe for concurrent use.
type Connector struct {
	// Guard handles panics in the goroutine. With nil, a panic ends the process.
	Guard *guard.Guard

	mu     sync.Mutex
	set    *epollset.Set // nil until something has to wait
	waits  map[uint64]chan struct{}
	next   uint64
	closed bool
}

// Connect connects a program's TCP socket without a change that the program can see: it
// restores O_NONBLOCK before it returns. The error is a syscall.Errno if the connection
// failed, and the cause of ctx if ctx ended first. In both cases Connect undoes the attempt
// (connect to AF_UNSPEC), so that the program may use the socket for another one.
func (k *Connector) Connect(ctx context.Context, d Socket, remote netip.AddrPort) error {
	connect := func(fd int) error {
		sa, err := sockaddr(fd, remote)
		if err != nil {
			return err
		}
		return bounded.Connect(fd, sa)
	}
	err := d.Control(connect)
	if !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	fd, err := d.Dup() // to wait on, outside of Control
	if err != nil {
		return err
	}
	defer bounded.Close(fd) //nolint:errcheck // a duplicate of the caller's descriptor
	err = k.await(ctx, fd)
	if err == nil {
		// The kernel sets the socket to "connected" only in another connect().
		// Without this one, the program's next connect() would succeed instead of
		// failing with EISCONN.
		if err = d.Control(connect); err == nil || errors.Is(err, unix.EISCONN) {
			return nil
		}
	}
	// Undo the attempt and clear the state in the kernel, which would fail the next
	// connect() with ECONNABORTED.
	var unspec unix.RawSockaddr // AF_UNSPEC is 0
	_, _, _ = unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&unspec)), unsafe.Sizeof(unspec))
	return err
}

// await waits until the attempt on fd, or ctx, has ended.
func (k *Connector) await(ctx context.Context, fd int) error {
	ready, stop, err := k.watch(fd)
	if err != nil {
		return err
	}
	defer stop()
	select {
	case <-ready:
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	e, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err != nil:
		return os.NewSyscallError("getsockopt SO_ERROR", err)
	case e != 0:
		return syscall.Errno(e)
	}
	return nil
}

// watch returns a channel that is closed when fd is writable or has failed. stop ends the
// watch, and must be called before fd is closed.
func (k *Connector) watch(fd int) (ready <-chan struct{}, stop func(), err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.open(); err != nil {
		return nil, nil, err
	}
	k.next++
	id := k.next
	if err := k.set.Add(fd, unix.EPOLLOUT|unix.EPOLLONESHOT, id); err != nil {
		return nil, nil, err
	}
	ch := make(chan struct{})
	k.waits[id] = ch
	return ch, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.waits, id)
		_ = k.set.Remove(fd)
	}, nil
}

// open makes the set if there is none. mu is held.
func (k *Connector) open() (err error) {
	switch {
	case k.closed:
		return os.ErrClosed
	case k.set != nil:
		return nil
	}
	k.waits = map[uint64]chan struct{}{}
	k.set, err = epollset.Open(k.Guard, k.deliver)
	return err
}

func (k *Connector) deliver(ids []uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range ids {
		if ch := k.waits[id]; ch != nil {
			delete(k.waits, id)
			close(ch)
		}
	}
}

// Close ends the goroutine. No call of Connect may be running. Connect fails afterwards with
// os.ErrClosed if it has to wait.
func (k *Connector) Close() error {
	k.mu.Lock()
	k.closed = true
	set := k.set
	k.mu.Unlock()
	if set == nil {
		return nil
	}
	return set.Close()
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
				return nil, fmt.Errorf("connector: the zone of %v is not an interface index: %w", ap, syscall.EINVAL)
			}
			sa.ZoneId = uint32(id)
		}
		return sa, nil
	default:
		return nil, fmt.Errorf("connector: %v does not fit a socket of family %d: %w", ap, family, syscall.EAFNOSUPPORT)
	}
}
