// SPDX-License-Identifier: Apache-2.0

package reflector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A reflector carries the connections of host A with itself. One thread does all, so Run may be called where
// only one thread is in the namespace of the host.
type reflector struct {
	log     *slog.Logger
	epoll   int
	tap     int
	mac     net.HardwareAddr // of the device of SYNs
	held    map[ways]*held
	live    map[ways]bool     // what is carried
	leaving map[int]time.Time // what is reset when it has sent all, and then at the latest
	watched map[int]*watched
	watches int32
	scratch []byte
}

// watched is what is done for the events of a descriptor. The number tells an event from one of an
// earlier descriptor of the same number.
type watched struct {
	do     func(events uint32)
	number int32
}

const (
	backlog = 4096
	// beat is how often the loop looks at the context, in milliseconds.
	beat = 200
)

// Run carries connections until the context ends. It must be called on the second host of a pair, after
// Prepare, as root. It calls ready when connections are taken.
func Run(ctx context.Context, log *slog.Logger, ready func()) error {
	r := &reflector{log: log, epoll: -1, tap: -1, held: map[ways]*held{}, live: map[ways]bool{}, leaving: map[int]time.Time{}, watched: map[int]*watched{}, scratch: make([]byte, 1<<16)}
	defer r.close()
	if err := r.open(); err != nil {
		return fmt.Errorf("reflector: %w", err)
	}
	ready()
	if err := r.loop(ctx); err != nil {
		return fmt.Errorf("reflector: %w", err)
	}
	return nil
}

func (r *reflector) open() (err error) {
	if r.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if r.tap, err = openTAP(); err != nil {
		return err
	}
	dev, err := net.InterfaceByName(tapName)
	if err != nil {
		return err
	}
	r.mac = dev.HardwareAddr
	if err := r.watch(r.tap, unix.EPOLLIN, func(uint32) { r.frames() }); err != nil {
		return err
	}
	for _, any := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
		fd, err := newSocket(any)
		if err != nil {
			return err
		}
		if err := r.watch(fd, unix.EPOLLIN, func(uint32) { r.accept(fd) }); err != nil {
			return err
		}
		if err := errors.Join(unix.Bind(fd, sockaddr(netip.AddrPortFrom(any, Port))), unix.Listen(fd, backlog)); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
	}
	return nil
}

// close resets what is left.
func (r *reflector) close() {
	for _, h := range r.held {
		closeReset(h.back)
	}
	for fd := range r.watched {
		closeReset(fd)
	}
	if r.epoll >= 0 {
		_ = unix.Close(r.epoll)
	}
}

func (r *reflector) loop(ctx context.Context) error {
	events := make([]unix.EpollEvent, 256)
	for ctx.Err() == nil {
		n, err := unix.EpollWait(r.epoll, events, beat)
		if err != nil && err != unix.EINTR {
			return os.NewSyscallError("epoll_wait", err)
		}
		for _, e := range events[:max(n, 0)] {
			if w := r.watched[int(e.Fd)]; w != nil && w.number == e.Pad {
				w.do(e.Events)
			}
		}
		r.expire(time.Now())
	}
	return nil
}

// frames takes the SYNs that have come.
func (r *reflector) frames() {
	for {
		n, err := unix.Read(r.tap, r.scratch)
		if err != nil {
			return
		}
		r.syn(r.scratch[:n])
	}
}

// accept joins the connections of clients with those that were made for them.
func (r *reflector) accept(listener int) {
	for {
		fd, from, err := unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err == unix.ECONNABORTED {
			continue
		}
		if err != nil {
			if later(err) != nil {
				r.log.Warn("cannot accept", "err", err)
			}
			return
		}
		to, err := unix.Getsockname(fd)
		w := ways{addrPort(from), addrPort(to)}
		h := r.held[w]
		if err != nil || h == nil {
			r.log.Warn("nobody waits for this connection any more", "client", w.client, "server", w.server)
			closeReset(fd)
			continue
		}
		delete(r.held, w)
		r.join(w, fd, h.back)
	}
}

// watch has do called for events of a descriptor, and for errors.
func (r *reflector) watch(fd int, events uint32, do func(events uint32)) error {
	r.watches++
	if err := unix.EpollCtl(r.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd), Pad: r.watches}); err != nil {
		return os.NewSyscallError("epoll_ctl", err)
	}
	r.watched[fd] = &watched{do, r.watches}
	return nil
}

// change changes the events of a watched descriptor.
func (r *reflector) change(fd int, events uint32) {
	if w := r.watched[fd]; w != nil {
		_ = unix.EpollCtl(r.epoll, unix.EPOLL_CTL_MOD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd), Pad: w.number})
	}
}

// forget ends watch.
func (r *reflector) forget(fd int) {
	if r.watched[fd] != nil {
		_ = unix.EpollCtl(r.epoll, unix.EPOLL_CTL_DEL, fd, nil)
		delete(r.watched, fd)
		delete(r.leaving, fd)
	}
}

// newSocket returns a TCP socket of the family of an address that may have addresses of the blocks.
func newSocket(like netip.Addr) (fd int, err error) {
	family, level, transparent := unix.AF_INET, unix.SOL_IP, unix.IP_TRANSPARENT
	if like.Is6() {
		family, level, transparent = unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	}
	if fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	err = errors.Join(unix.SetsockoptInt(fd, level, transparent, 1), unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	if like.Is6() {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_V6ONLY, 1))
	}
	if err != nil {
		_ = unix.Close(fd)
		return 0, os.NewSyscallError("setsockopt", err)
	}
	return fd, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}
