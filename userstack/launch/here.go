// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// nearTime is how long an answer of the stack is used that an address belongs to
	// another network namespace of this machine.
	nearTime = 5 * time.Second
	// maxNear is the largest number of such addresses.
	maxNear = 1024
	// maxAsked is the largest number of the kernel's answers that are kept.
	maxAsked = 1024
)

// here knows which addresses are of this machine. A connection to one of them is TCP between
// the programs' own sockets, and nobody is asked about it. A wrong answer costs speed alone:
// a socket that no stack has marked never announces SMC, so its bytes are never taken for
// messages of CLC.
type here struct {
	none bool // in tests: no address is

	mu      sync.Mutex
	route   int // rtnetlink socket; 0: not open
	changes int // rtnetlink socket that hears of changes; 0: not open
	seq     uint32
	buf     [512]byte                // of a request, then of its answer
	asked   map[netip.Addr]bool      // the kernel's answers since the last change
	near    map[netip.Addr]time.Time // until when an answer of the stack is used
}

// has reports whether a connection to an address stays on this machine.
func (h *here) has(a netip.Addr) bool { return !h.none && (h.owns(a) || h.isNear(time.Now(), a)) }

// owns reports whether an address is one of this network namespace. Connections to the
// unspecified address go to the loopback device.
func (h *here) owns(a netip.Addr) bool {
	a = a.Unmap()
	switch {
	case h.none, !a.IsValid():
		return false
	case a.IsLoopback(), a.IsUnspecified():
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.open() {
		return false
	}
	if h.changed() {
		clear(h.asked)
	} else if here, ok := h.asked[a]; ok {
		return here
	}
	here, ok := h.routedHere(a)
	if ok {
		if len(h.asked) >= maxAsked || h.asked == nil {
			h.asked = map[netip.Addr]bool{}
		}
		h.asked[a] = here
	}
	return here
}

// learn records that the stack said that an address is one of this machine.
func (h *here) learn(now time.Time, a netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.near) >= maxNear || h.near == nil {
		h.near = map[netip.Addr]time.Time{}
	}
	h.near[a.Unmap()] = now.Add(nearTime)
}

func (h *here) isNear(now time.Time, a netip.Addr) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	until, ok := h.near[a.Unmap()]
	return ok && now.Before(until)
}

// A request for the route to an address: struct nlmsghdr, struct rtmsg, and the attributes
// RTA_DST and RTA_OIF (linux/rtnetlink.h).
const (
	rtmsgAt   = unix.SizeofNlMsghdr
	rtaAt     = rtmsgAt + unix.SizeofRtMsg
	rtmTypeAt = rtmsgAt + 7 // rtm_type
)

// heard are the multicast groups of rtnetlink that tell of whatever changes the route to an
// address: of netdevs, addresses, routes, rules and next hops.
const heard = 1<<(unix.RTNLGRP_LINK-1) | 1<<(unix.RTNLGRP_NEXTHOP-1) |
	1<<(unix.RTNLGRP_IPV4_IFADDR-1) | 1<<(unix.RTNLGRP_IPV4_ROUTE-1) | 1<<(unix.RTNLGRP_IPV4_RULE-1) |
	1<<(unix.RTNLGRP_IPV6_IFADDR-1) | 1<<(unix.RTNLGRP_IPV6_ROUTE-1) | 1<<(unix.RTNLGRP_IPV6_RULE-1)

// open opens the sockets, if they are not open. A launcher opens them at its start, so that it
// has no more descriptors after its first connection than before.
func (h *here) open() bool {
	if h.route != 0 {
		return true
	}
	const kind = unix.SOCK_RAW | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	fd, err := unix.Socket(unix.AF_NETLINK, kind, unix.NETLINK_ROUTE)
	if err != nil {
		return false
	}
	h.route = fd
	// Without this socket, the kernel is asked each time.
	fd, err = unix.Socket(unix.AF_NETLINK, kind, unix.NETLINK_ROUTE)
	if err != nil {
		return true
	}
	// One message says as much as a thousand, and a host may have many launchers: the kernel
	// keeps the first, and that others were lost.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 0)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: heard}); err != nil {
		_ = unix.Close(fd)
		return true
	}
	h.changes = fd
	return true
}

// changed reports whether an answer of the kernel may have changed since the last call. The
// kernel sends the message before the call that makes a change returns, so whoever knows of
// the change finds the message here. h.mu is held.
func (h *here) changed() bool {
	if h.changes == 0 {
		return true
	}
	for n := 0; ; n++ {
		// ENOBUFS says that messages were lost.
		if _, err := unix.Read(h.changes, h.buf[:]); err == unix.EAGAIN || n == 16 {
			return n > 0
		}
	}
}

// routedHere asks the kernel for the type of the route to a. The answer takes the kernel some
// microseconds and no lock that another process can hold for long, and it is right at once
// when an address is added or removed. Without an answer, ok is false: the stack is asked.
// h.mu is held.
func (h *here) routedHere(a netip.Addr) (here, ok bool) {
	h.seq++
	req := appendRouteRequest(h.buf[:0], h.seq, a)
	if _, err := unix.Write(h.route, req); err != nil {
		return false, false
	}
	b := h.buf[:]
	for {
		// The kernel answers before the call above returns.
		n, err := unix.Read(h.route, b)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return false, false
		}
		if typ, seq, ok := parseRoute(b[:n]); seq == h.seq {
			return ok && typ == unix.RTN_LOCAL, ok
		}
	}
}

// appendRouteRequest appends a request for the route to a.
func appendRouteRequest(b []byte, seq uint32, a netip.Addr) []byte {
	family, length := byte(unix.AF_INET), 4
	if a.Is6() {
		family, length = unix.AF_INET6, 16
	}
	size := rtaAt + 4 + length
	zone := uint64(0)
	if z := a.Zone(); z != "" {
		zone, _ = strconv.ParseUint(z, 10, 32) // the number of a netdev
		size += 8
	}
	e := binary.NativeEndian
	b = e.AppendUint32(b, uint32(size))
	b = e.AppendUint16(b, unix.RTM_GETROUTE)
	b = e.AppendUint16(b, unix.NLM_F_REQUEST)
	b = e.AppendUint32(b, seq)
	b = e.AppendUint32(b, 0)
	b = append(b, family, byte(8*length), 0, 0, 0, 0, 0, 0)
	b = e.AppendUint32(b, 0)
	b = e.AppendUint16(b, uint16(4+length))
	b = e.AppendUint16(b, unix.RTA_DST)
	if a.Is4() {
		v := a.As4()
		b = append(b, v[:]...)
	} else {
		v := a.As16()
		b = append(b, v[:]...)
	}
	if a.Zone() != "" {
		b = e.AppendUint16(b, 8)
		b = e.AppendUint16(b, unix.RTA_OIF)
		b = e.AppendUint32(b, uint32(zone))
	}
	return b
}

// parseRoute returns the type of the route in an answer, and the number of the request. ok is
// false if it is an error, or no answer.
func parseRoute(b []byte) (typ uint8, seq uint32, ok bool) {
	if len(b) < rtmsgAt {
		return 0, 0, false
	}
	e := binary.NativeEndian
	seq = e.Uint32(b[8:])
	if e.Uint16(b[4:]) != unix.RTM_NEWROUTE || len(b) < rtaAt {
		return 0, seq, false
	}
	return b[rtmTypeAt], seq, true
}

// close closes the sockets.
func (h *here) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, fd := range []*int{&h.route, &h.changes} {
		if *fd != 0 {
			_ = unix.Close(*fd)
			*fd = 0
		}
	}
	clear(h.asked)
}

// staysHere reports whether a connection to an address is TCP because the address is one of
// this machine. With smcr run --local, the stack decides about those of this network
// namespace.
func (x *sessions) staysHere(a netip.Addr) bool {
	if b := x.live(); b != nil && b.Local() {
		return !x.here.none && !x.here.owns(a) && x.here.isNear(time.Now(), a)
	}
	return x.here.has(a)
}

// overTCP counts an accepted connection whose SYN did not announce SMC, and tells the stack of
// it if its client is not of this machine.
func (l *listener) overTCP(a *accepted) {
	if l.s.sessions.here.has(a.remote.Addr()) {
		l.s.stats.local()
		return
	}
	l.s.leftToTCP(a.sock, false, noPeer)
}
