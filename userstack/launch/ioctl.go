// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"encoding/binary"
	"errors"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/userstack/internal/rights"
)

// Requests of ioctl() that x/sys/unix has no names for (linux/sockios.h,
// asm-generic/sockios.h).
const (
	siocGIFPFLAGS   = 0x8935
	siocSIFPFLAGS   = 0x8934
	siocRTMSG       = 0x890d
	siocUnixFile    = 0x89e0
	siocOUTQNSD     = 0x894b
	siocGSTAMPOld   = 0x8906
	siocGSTAMPNSOld = 0x8907
)

// Sizes in bytes of what ioctl() requests take and give (linux/if.h, linux/ipv6.h,
// linux/if_arp.h, linux/route.h, linux/ipv6_route.h).
const (
	sizeofIfreq    = 40
	sizeofIn6Ifreq = 24
	sizeofArpreq   = 68
	sizeofRtentry  = 120
	sizeofIn6Rtmsg = 80

	rtentryDev = 88 // the offset of rt_dev, a pointer to a name
	ifNameSize = 15 // of the name that the kernel copies from there
)

// nowhere is an address that the kernel cannot read.
const nowhere = 1

// ioctlKind says how the launcher answers an ioctl() request.
type ioctlKind uint8

const (
	// ioctlNative: the kernel answers for the socketpair.
	ioctlNative ioctlKind = iota
	// ioctlReads reads from the network namespace, ioctlSets changes it.
	ioctlReads
	ioctlSets
	// ioctlRoute is ioctlSets for a struct rtentry.
	ioctlRoute
	// ioctlFails: a TCP socket always gives the same error.
	ioctlFails
	// ioctlQueue gives a number of bytes.
	ioctlQueue
)

// ioctlAnswer is how the launcher answers an ioctl() request for a socket of one
// family.
type ioctlAnswer struct {
	kind ioctlKind
	size int           // of the argument in bytes
	err  syscall.Errno // of ioctlFails
}

// ioctlAnswers are the requests that a socketpair answers differently from a
// TCP socket of IPv4 or IPv6. The requests that the kernel answers for all
// sockets alike, such as SIOCGIFINDEX and SIOCGIFCONF, are right: the pair is in
// the network namespace of the launcher, and a connection of another one is never
// carried. The kernel checks the rights of the program for these.
var ioctlAnswers = map[uint32]struct{ v4, v6 ioctlAnswer }{
	unix.SIOCGIFADDR:      {v4: ioctlAnswer{kind: ioctlReads, size: sizeofIfreq}},
	unix.SIOCGIFDSTADDR:   {v4: ioctlAnswer{kind: ioctlReads, size: sizeofIfreq}},
	unix.SIOCGIFBRDADDR:   {v4: ioctlAnswer{kind: ioctlReads, size: sizeofIfreq}},
	unix.SIOCGIFNETMASK:   {v4: ioctlAnswer{kind: ioctlReads, size: sizeofIfreq}},
	siocGIFPFLAGS:         {v4: ioctlAnswer{kind: ioctlReads, size: sizeofIfreq}},
	unix.SIOCSIFADDR:      {v4: ioctlAnswer{kind: ioctlSets, size: sizeofIfreq}, v6: ioctlAnswer{kind: ioctlSets, size: sizeofIn6Ifreq}},
	unix.SIOCSIFDSTADDR:   {v4: ioctlAnswer{kind: ioctlSets, size: sizeofIfreq}, v6: ioctlAnswer{kind: ioctlSets, size: sizeofIn6Ifreq}},
	unix.SIOCDIFADDR:      {v6: ioctlAnswer{kind: ioctlSets, size: sizeofIn6Ifreq}},
	unix.SIOCSIFBRDADDR:   {v4: ioctlAnswer{kind: ioctlSets, size: sizeofIfreq}},
	unix.SIOCSIFNETMASK:   {v4: ioctlAnswer{kind: ioctlSets, size: sizeofIfreq}},
	siocSIFPFLAGS:         {v4: ioctlAnswer{kind: ioctlSets, size: sizeofIfreq}},
	unix.SIOCSIFFLAGS:     {v4: ioctlAnswer{kind: ioctlSets, size: sizeofIfreq}}, // of an alias; else as for all sockets
	unix.SIOCADDRT:        {v4: ioctlAnswer{kind: ioctlRoute, size: sizeofRtentry}, v6: ioctlAnswer{kind: ioctlSets, size: sizeofIn6Rtmsg}},
	unix.SIOCDELRT:        {v4: ioctlAnswer{kind: ioctlRoute, size: sizeofRtentry}, v6: ioctlAnswer{kind: ioctlSets, size: sizeofIn6Rtmsg}},
	siocRTMSG:             {v4: ioctlAnswer{kind: ioctlFails, err: unix.EINVAL}},
	unix.SIOCGARP:         {v4: ioctlAnswer{kind: ioctlReads, size: sizeofArpreq}},
	unix.SIOCSARP:         {v4: ioctlAnswer{kind: ioctlSets, size: sizeofArpreq}},
	unix.SIOCDARP:         {v4: ioctlAnswer{kind: ioctlSets, size: sizeofArpreq}},
	siocUnixFile:          bothFamilies(ioctlAnswer{kind: ioctlReads, size: sizeofIfreq}), // SIOCPROTOPRIVATE, which TCP has not
	siocGSTAMPOld:         bothFamilies(ioctlAnswer{kind: ioctlFails, err: unix.ENOENT}),
	siocGSTAMPNSOld:       bothFamilies(ioctlAnswer{kind: ioctlFails, err: unix.ENOENT}),
	unix.SIOCGSTAMP_NEW:   bothFamilies(ioctlAnswer{kind: ioctlFails, err: unix.ENOENT}),
	unix.SIOCGSTAMPNS_NEW: bothFamilies(ioctlAnswer{kind: ioctlFails, err: unix.ENOENT}),
	unix.SIOCOUTQ:         bothFamilies(ioctlAnswer{kind: ioctlQueue, size: 4}),
	siocOUTQNSD:           bothFamilies(ioctlAnswer{kind: ioctlQueue, size: 4}),
}

func bothFamilies(a ioctlAnswer) struct{ v4, v6 ioctlAnswer } {
	return struct{ v4, v6 ioctlAnswer }{a, a}
}

// answerIoctl answers ioctl() on the program's end of a connection.
func answerIoctl(n *notif, c *conn) {
	s := c.s
	c.mu.Lock()
	swapped := c.swapped
	c.mu.Unlock()
	answers := ioctlAnswers[uint32(n.Args[1])]
	a := answers.v4
	if c.domain == unix.AF_INET6 {
		a = answers.v6
	}
	switch {
	case !swapped || a.kind == ioctlNative:
		s.cont(n)
	case a.kind == ioctlFails:
		s.fail(n, a.err)
	case a.kind == ioctlQueue:
		answerQueue(n, c)
	default:
		s.fail(n, errnoOf(c.ioctl(n, a)))
	}
}

// ioctl makes the request of call n on a TCP socket of the launcher's network
// namespace, which is that of the connection, with the rights of the program.
func (c *conn) ioctl(n *notif, a ioctlAnswer) error {
	// The kernel checks some rights before it reads the argument. So if the program's
	// memory cannot be read, it gets an address that it cannot read either.
	p := uintptr(nowhere)
	var dev []byte
	b, err := n.read(n.Args[2], a.size, 0)
	if err == nil {
		p = uintptr(unsafe.Pointer(&b[0]))
		if a.kind == ioctlRoute {
			dev = n.routeDevice(b)
		}
	}
	// A request that only reads may make the kernel load a module, if the caller
	// has the rights.
	r := rights.Of(strconv.Itoa(n.tid()))
	if !n.valid() {
		return unix.ENOENT
	}
	fd, err := unix.Socket(c.domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if a.kind != ioctlReads && rights.OwnsNetwork() {
		return unix.EPERM // r.Do would take nothing away
	}
	err = r.Do(func() error {
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(n.Args[1]), p)
		if e != 0 {
			return e
		}
		return nil
	})
	runtime.KeepAlive(b)
	runtime.KeepAlive(dev)
	if err != nil || a.kind != ioctlReads {
		return err
	}
	return n.write(n.Args[2], b)
}

// routeDevice reads the name that a struct rtentry points to and makes the struct
// point to the copy. If the name cannot be read, the struct points to memory that
// the kernel cannot read either.
func (n *notif) routeDevice(rt []byte) (dev []byte) {
	addr := binary.NativeEndian.Uint64(rt[rtentryDev:])
	if addr == 0 {
		return nil
	}
	p := uintptr(nowhere)
	if name, err := n.read(addr, ifNameSize, 0); err == nil {
		dev = name
		p = uintptr(unsafe.Pointer(&dev[0]))
	}
	binary.NativeEndian.PutUint64(rt[rtentryDev:], uint64(p))
	return dev
}

// write stores b at address addr in the memory of n's process.
func (n *notif) write(addr uint64, b []byte) error {
	return n.l.looks.try(n, n.tid(), 0, func() error {
		defer n.l.stores.begin(n)()
		mem, err := n.memory()
		if err != nil {
			return err
		}
		defer mem.close()
		return mem.store(addr, b)
	})
}

// answerQueue answers SIOCOUTQ, the number of bytes that the program has written
// and the peer has not confirmed, and SIOCOUTQNSD, of which the stack has not sent
// any.
func answerQueue(n *notif, c *conn) {
	s := c.s
	unsent, err := c.unsent()
	if err != nil {
		unsent, err = c.queued(n)
	}
	if err != nil {
		s.cont(n)
		return
	}
	s.fail(n, errnoOf(n.write(n.Args[2], binary.NativeEndian.AppendUint32(nil, uint32(unsent)))))
}

// errNoEnd means that the launcher has no copy of the service's end.
var errNoEnd = errors.New("launch: no copy of the pair's end")

// unsent returns the number of bytes that the program has written and the service
// has not taken.
func (c *conn) unsent() (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pair.end < 0 {
		return 0, errNoEnd
	}
	queued, err := unix.IoctlGetInt(c.pair.end, unix.SIOCINQ)
	return max(queued-c.pair.junk, 0), err
}

// queued is unsent for a connection of which the launcher has no other end. The kernel
// counts its own memory for the bytes, too.
func (c *conn) queued(n *notif) (held int, err error) {
	c.mu.Lock()
	inode := c.pair.inode
	c.mu.Unlock()
	fd, err := c.s.looks.socket(n, n.tid(), n.fdArg(), inode, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return unix.IoctlGetInt(fd, unix.SIOCOUTQ)
}
