// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/userstack/internal/bounded"
)

// A placeholder is a connection from the host to itself that the launcher makes
// to a listening socket of the program. It is in the socket's queue instead of
// the connections that the launcher has accepted early (late.go), so that poll,
// select and epoll of all processes still report the socket as readable. When
// the socket is closed, the kernel resets the placeholder, which tells the
// launcher of the end. No accept() of the program returns it: the launcher
// answers these calls and knows a placeholder by its addresses.

const (
	// placeTime is the first wait until a placeholder is connected. It does not leave the host,
	// so that is usually so when connect returns.
	placeTime = 20 * time.Millisecond
	// placeTimeMax is the longest such wait. The calls of the program on the listening socket
	// wait too.
	placeTimeMax = 320 * time.Millisecond
	// placeTries is the number of attempts if placeholders reach another
	// listening socket of the port.
	placeTries = 3
)

var (
	// errNoPlace means that no address of the host leads to the listening
	// socket.
	errNoPlace = errors.New("launch: no local address leads to the listening socket")
	// errMisplaced means that a placeholder is not in the queue of the
	// listening socket.
	errMisplaced = errors.New("launch: a local connection does not reach the listening socket")
	// errPlaceSlow means that a placeholder was not connected in time: the machine is busy, or
	// the host's connections with itself are filtered.
	errPlaceSlow = errors.New("launch: a local connection to the listening socket is not made in time")
)

// placeholder is the launcher's end of a placeholder.
type placeholder struct {
	fd  int
	key placeKey
	dev uint32 // index of the device that the listening socket is bound to
	sub *subscription
}

// placeKey identifies a placeholder: the addresses of the launcher's end and of
// the other end.
type placeKey struct{ from, to netip.AddrPort }

func placeKeyOf(from, to netip.AddrPort) placeKey {
	plain := func(a netip.AddrPort) netip.AddrPort {
		return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
	}
	return placeKey{plain(from), plain(to)}
}

// maxDropped is the number of dropped placeholders that are still known.
const maxDropped = 256

// places has all placeholders of a launcher.
type places struct {
	n  atomic.Int64 // len(m) + len(dropped)
	mu sync.Mutex
	m  map[placeKey]*placeholder
	// dropped has the last placeholders that were dropped, oldest first. Each may
	// still be in the queue of a socket, as a connection that was reset.
	dropped []placeKey
}

// open calls connect, which makes p's connection and returns the launcher's address,
// and adds p to the table. take waits meanwhile, so that it does not take p for a
// connection of the program.
func (x *places) open(p *placeholder, to netip.AddrPort, connect func() (from netip.AddrPort, err error)) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.n.Add(1) // so that take waits for mu
	from, err := connect()
	if err == nil {
		p.key = placeKeyOf(from, to)
		if x.m == nil {
			x.m = make(map[placeKey]*placeholder)
		}
		x.m[p.key] = p
	}
	x.count()
	return err
}

// count sets n. x.mu is held.
func (x *places) count() { x.n.Store(int64(len(x.m) + len(x.dropped))) }

// take reports whether an accepted connection is a placeholder, also one that was
// dropped. If the launcher still has its end of it, take closes it and returns it as p.
func (x *places) take(a *accepted) (p *placeholder, ok bool) {
	if x.n.Load() == 0 {
		return nil, false
	}
	key := placeKeyOf(a.remote, localAddr(a.sock))
	x.mu.Lock()
	if p = x.m[key]; p != nil {
		x.mu.Unlock()
		x.forget(p)
		p.reset()
		return p, true
	}
	defer x.mu.Unlock()
	i := slices.Index(x.dropped, key)
	if i < 0 || !wasReset(a.sock) { // another connection may have got the addresses
		return nil, false
	}
	x.dropped = slices.Delete(x.dropped, i, i+1)
	x.count()
	return nil, true
}

// wasReset reports whether a connection is over because it was reset.
func wasReset(fd int) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err == nil && info.State == unix.BPF_TCP_CLOSE
}

// drop ends a placeholder. A connection that was reset may remain in the queue; take
// knows its addresses.
func (x *places) drop(p *placeholder) {
	x.mu.Lock()
	if x.m[p.key] == p {
		delete(x.m, p.key)
		if len(x.dropped) == maxDropped {
			x.dropped = slices.Delete(x.dropped, 0, 1)
		}
		x.dropped = append(x.dropped, p.key)
		x.count()
	}
	p.reset() // before take checks whether it was reset
	x.mu.Unlock()
	p.sub.stop()
}

// forget removes p from the table. The caller owns its socket then.
func (x *places) forget(p *placeholder) {
	x.mu.Lock()
	if x.m[p.key] == p {
		delete(x.m, p.key)
		x.count()
	}
	x.mu.Unlock()
	p.sub.stop()
}

// reset closes the launcher's end so that the other end gets a reset.
func (p *placeholder) reset() {
	_ = unix.SetsockoptLinger(p.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	_ = unix.Close(p.fd)
}

// place makes a placeholder for the listening socket fd and returns when the placeholder
// is in the queue of fd. It waits at most as long as patience for the connection. Other sockets
// may listen on the port as well (SO_REUSEPORT).
func (x *places) place(fd int, patience time.Duration) (*placeholder, error) {
	to, dev, err := placeTarget(fd)
	if err != nil {
		return nil, err
	}
	shared, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT)
	tries := 1
	if shared != 0 {
		tries = placeTries
	}
	for range tries {
		var p *placeholder
		if shared == 0 {
			p, err = x.connect(fd, to, dev, patience)
		} else {
			p, err = x.steer(fd, to, dev, patience)
		}
		if !errors.Is(err, errMisplaced) {
			return p, err
		}
	}
	return nil, err
}

// placeTarget returns an address of this host that leads to the listening socket
// fd, and the device that it is bound to.
func placeTarget(fd int) (to netip.AddrPort, dev string, err error) {
	sa, err := bounded.Sockname(fd)
	if err != nil {
		return to, "", os.NewSyscallError("getsockname", err)
	}
	to = toAddrPort(sa)
	if to.Port() == 0 {
		return to, "", errNoPlace
	}
	if dev, err = unix.GetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE); err != nil {
		dev = ""
	}
	v6 := to.Addr().Is6() && !to.Addr().Is4In6()
	if !to.Addr().IsUnspecified() {
		level, name := unix.IPPROTO_IP, unix.IP_TRANSPARENT
		if v6 {
			level, name = unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT
		}
		if on, _ := unix.GetsockoptInt(fd, level, name); on != 0 {
			return to, "", errNoPlace // the address may be that of another host
		}
		return netip.AddrPortFrom(to.Addr().Unmap(), to.Port()), dev, nil
	}
	only := 0
	if v6 {
		only, _ = unix.GetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
	}
	switch {
	case dev == "" && v6:
		return netip.AddrPortFrom(netip.IPv6Loopback(), to.Port()), "", nil
	case dev == "":
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), to.Port()), "", nil
	case only != 0:
		return to, "", errNoPlace
	}
	// The addresses of the loopback device do not lead to a socket bound to another device.
	ifr, err := unix.NewIfreq(dev)
	if err != nil {
		return to, "", err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFADDR, ifr); err != nil {
		return to, "", fmt.Errorf("%w: %w", errNoPlace, err)
	}
	b, err := ifr.Inet4Addr()
	if err != nil {
		return to, "", fmt.Errorf("%w: %w", errNoPlace, err)
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b)), to.Port()), dev, nil
}

// connect makes a placeholder. Both ends have the same address, so that the
// connection does not leave the host.
func (x *places) connect(fd int, to netip.AddrPort, dev string, patience time.Duration) (_ *placeholder, err error) {
	family := unix.AF_INET
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	sock, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	p := &placeholder{fd: sock}
	defer func() {
		if err != nil {
			x.drop(p)
		}
	}()
	if dev != "" {
		if err := unix.BindToDevice(sock, dev); err != nil {
			return nil, os.NewSyscallError("setsockopt SO_BINDTODEVICE", err)
		}
		ifr, err := unix.NewIfreq(dev)
		if err != nil {
			return nil, err
		}
		if err := unix.IoctlIfreq(sock, unix.SIOCGIFINDEX, ifr); err != nil {
			return nil, os.NewSyscallError("ioctl SIOCGIFINDEX", err)
		}
		p.dev = ifr.Uint32()
	}
	// The server may have set a minimum TTL (IP_MINTTL).
	level, ttl := unix.IPPROTO_IP, unix.IP_TTL
	if family == unix.AF_INET6 {
		level, ttl = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
	}
	_ = unix.SetsockoptInt(sock, level, ttl, 255)
	_ = unix.SetsockoptInt(sock, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
	if err := unix.Bind(sock, sockaddr(netip.AddrPortFrom(to.Addr(), 0))); err != nil {
		return nil, os.NewSyscallError("bind", err)
	}
	err = x.open(p, to, func() (from netip.AddrPort, err error) {
		if err := unix.Connect(sock, sockaddr(to)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			return from, os.NewSyscallError("connect", err)
		}
		sa, err := bounded.Sockname(sock)
		if err != nil {
			return from, os.NewSyscallError("getsockname", err)
		}
		return toAddrPort(sa), nil
	})
	if err != nil {
		return nil, err
	}
	poll := []unix.PollFd{{Fd: int32(sock), Events: unix.POLLOUT}}
	switch n, err := unix.Poll(poll, int(patience.Milliseconds())); {
	case err != nil, n == 0:
		return nil, errPlaceSlow
	case poll[0].Revents != unix.POLLOUT:
		return nil, errMisplaced
	}
	if v, _ := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT); v > 0 {
		// The kernel queues the connection only when data arrives.
		if err := unix.Sendto(sock, []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil); err != nil {
			return nil, os.NewSyscallError("send", err)
		}
	}
	where, err := p.where()
	if err != nil {
		return nil, err
	}
	if where == placeGone {
		return nil, errMisplaced
	}
	return p, nil
}

// steer is like connect for a port on which several sockets listen. The kernel
// prefers the socket whose SO_INCOMING_CPU is the processor on which the packet
// arrives (Linux 6.2), which is the processor of the connect().
func (x *places) steer(fd int, to netip.AddrPort, dev string, patience time.Duration) (*placeholder, error) {
	before, err := acceptQueue(fd)
	if err != nil {
		return nil, err
	}
	cpu, unpin, err := pinCPU()
	if err != nil {
		return nil, err
	}
	defer unpin()
	was, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_INCOMING_CPU)
	if err != nil {
		return nil, os.NewSyscallError("getsockopt SO_INCOMING_CPU", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_INCOMING_CPU, cpu); err != nil {
		return nil, os.NewSyscallError("setsockopt SO_INCOMING_CPU", err)
	}
	p, err := x.connect(fd, to, dev, patience)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_INCOMING_CPU, was)
	if err != nil {
		return nil, err
	}
	if after, err := acceptQueue(fd); err != nil || after.waiting <= before.waiting {
		x.drop(p)
		return nil, errMisplaced
	}
	return p, nil
}

// pinCPU keeps the goroutine on the processor that it runs on until unpin is called.
func pinCPU() (cpu int, unpin func(), err error) {
	runtime.LockOSThread()
	defer func() {
		if err != nil {
			runtime.UnlockOSThread()
		}
	}()
	var was, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &was); err != nil {
		return 0, nil, os.NewSyscallError("sched_getaffinity", err)
	}
	var n, node uint32
	if _, _, e := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&n)), uintptr(unsafe.Pointer(&node)), 0); e != 0 {
		return 0, nil, os.NewSyscallError("getcpu", e)
	}
	one.Set(int(n))
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return 0, nil, os.NewSyscallError("sched_setaffinity", err)
	}
	return int(n), func() {
		if unix.SchedSetaffinity(0, &was) == nil {
			runtime.UnlockOSThread() // otherwise the thread ends with the goroutine
		}
	}, nil
}

// sockaddr returns the address as a unix.Sockaddr.
func sockaddr(ap netip.AddrPort) unix.Sockaddr {
	if ap.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(ap.Port()), Addr: ap.Addr().As4()}
	}
	zone, _ := strconv.ParseUint(ap.Addr().Zone(), 10, 32)
	return &unix.SockaddrInet6{Port: int(ap.Port()), Addr: ap.Addr().As16(), ZoneId: uint32(zone)}
}

// queue is the state of a listening socket's queue.
type queue struct {
	listens      bool
	waiting, max int // max+1 connections may wait
}

// acceptQueue returns the state of the queue of listening socket fd.
func acceptQueue(fd int) (queue, error) {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return queue{}, os.NewSyscallError("getsockopt TCP_INFO", err)
	}
	const listen = 10 // TCP_LISTEN of linux/tcp_states.h
	return queue{info.State == listen, int(info.Unacked), int(info.Sacked)}, nil
}

// placeWhere says where the other end of a placeholder is.
type placeWhere uint8

const (
	placeGone   placeWhere = iota // it has ended or was never there
	placeQueued                   // in a queue
	placeTaken                    // some process has accepted it
)

// where asks the kernel for the socket that is the other end.
func (p *placeholder) where() (placeWhere, error) {
	m, err := diagExact(p.key.to, p.key.from, p.dev)
	if errors.Is(err, unix.ENOENT) {
		return placeGone, nil
	}
	if err != nil {
		return placeGone, err
	}
	const established, closeWait = 1, 8
	switch {
	case m.state != established && m.state != closeWait:
		return placeGone, nil // without such a socket the kernel returns the listening socket
	case m.inode == 0:
		return placeQueued, nil
	}
	return placeTaken, nil
}
