// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"encoding/binary"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/internal/atonce"
)

// What unix does not have of TCP_REPAIR (linux/tcp.h).
const (
	repairOn     = 1
	repairOff    = -1 // and no window probe
	queueReceive = 1
	queueSend    = 2
	leastMSS     = 88    // that TCP_MAXSEG takes
	mostMSS      = 32767 // likewise
	tcpRepairWin = 29
)

// repairWindow is struct tcp_repair_window.
type repairWindow struct{ sndWL1, sndWnd, maxWindow, rcvWnd, rcvWup uint32 }

// connectAs makes a TCP socket of the stack's namespace that is connected, as e says, although no packet has
// been sent. Its close resets the connection until SO_LINGER is cleared, so that a stack that is killed never ends a stream. The
// error wraps a syscall.Errno.
func (n *namespace) connectAs(t Tuple, e end) (fd int, err error) {
	family, ip, transparent := unix.AF_INET, unix.IPPROTO_IP, unix.IP_TRANSPARENT
	if t.Local.Addr().Is6() {
		family, ip, transparent = unix.AF_INET6, unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT
	}
	if fd, err = n.socket(family); err != nil {
		return -1, err
	}
	set, made := setter{fd: fd}, fd
	defer func() {
		if err != nil {
			atonce.Close(made)
			fd = -1
		}
	}()
	set.int(ip, transparent, 1)
	set.int(unix.IPPROTO_TCP, unix.TCP_MAXSEG, int(min(max(e.mss, leastMSS), mostMSS)))
	set.int(unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	set.int(unix.IPPROTO_TCP, unix.TCP_REPAIR, repairOn)
	for _, q := range []struct {
		queue int
		seq   uint32
	}{{queueSend, e.snd}, {queueReceive, e.rcv}} {
		set.int(unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, q.queue)
		set.int(unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ, int(int32(q.seq)))
	}
	if set.err != nil {
		return -1, set.err
	}
	if err := calls(unix.SYS_BIND, fd, t.Local, n.zone); err != nil {
		return -1, os.NewSyscallError("bind", err)
	}
	if err := calls(unix.SYS_CONNECT, fd, t.Remote, n.zone); err != nil {
		return -1, os.NewSyscallError("connect", err)
	}
	var options []byte
	option := func(kind, value uint32) {
		options = binary.NativeEndian.AppendUint32(binary.NativeEndian.AppendUint32(options, kind), value)
	}
	option(optMSS, uint32(e.mss))
	// Without scaling both are 0; the socket has chosen a scale of its own by now.
	option(optScale, uint32(e.sndScale)|uint32(e.rcvScale)<<16)
	if e.sack {
		option(optSACK, 0)
	}
	if e.timestamps {
		option(optTimestamps, 0)
	}
	set.bytes(unix.IPPROTO_TCP, unix.TCP_REPAIR_OPTIONS, options)
	if e.timestamps {
		set.int(unix.IPPROTO_TCP, unix.TCP_TIMESTAMP, int(int32(e.timestamp())))
	}
	w := repairWindow{sndWL1: e.sndSeq, sndWnd: e.sndWindow, maxWindow: e.sndWindow, rcvWnd: e.rcvWindow, rcvWup: e.rcv}
	set.bytes(unix.IPPROTO_TCP, tcpRepairWin, unsafe.Slice((*byte)(unsafe.Pointer(&w)), unsafe.Sizeof(w)))
	set.int(unix.IPPROTO_TCP, unix.TCP_REPAIR, repairOff)
	if set.err == nil {
		set.err = os.NewSyscallError("setsockopt", atonce.SetLinger(fd, true))
	}
	return fd, set.err
}

// waitsForAnswers has outer not acknowledge at once: a message is answered by the next one, or by the end of the connection.
func waitsForAnswers(fd int) { _ = atonce.SetInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 0) }

// keepsAlive has outer keep the connection alive while it is idle.
func keepsAlive(fd int) { _ = atonce.SetInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1) }

// setter sets options of a socket until one fails.
type setter struct {
	fd  int
	err error
}

func (s *setter) int(level, name, value int) {
	if s.err == nil {
		v := int32(value)
		s.set(level, name, unsafe.Pointer(&v), unsafe.Sizeof(v))
	}
}

func (s *setter) bytes(level, name int, value []byte) {
	if s.err == nil {
		s.set(level, name, unsafe.Pointer(unsafe.SliceData(value)), uintptr(len(value)))
	}
}

// set sets an option. That does not wait for anything, so Go's scheduler need not know of the call: it is one of many for each connection.
func (s *setter) set(level, name int, value unsafe.Pointer, size uintptr) {
	if _, _, errno := unix.RawSyscall6(unix.SYS_SETSOCKOPT, uintptr(s.fd), uintptr(level), uintptr(name), uintptr(value), size, 0); errno != 0 {
		s.err = os.NewSyscallError("setsockopt", errno)
	}
}

// tcpInfo asks for TCP_INFO. The error is a syscall.Errno.
func tcpInfo(fd int, info *unix.TCPInfo) error {
	size := uint32(unsafe.Sizeof(*info))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_INFO, uintptr(unsafe.Pointer(info)), uintptr(unsafe.Pointer(&size)), 0)
	return failed(errno)
}

// calls makes a call that takes an address: bind(2), or connect(2) with TCP_REPAIR, which waits for nothing. zone is that of link-local
// addresses. The error is a syscall.Errno.
func calls(nr uintptr, fd int, a netip.AddrPort, zone int) error {
	var errno syscall.Errno
	if a.Addr().Is4() {
		s := unix.RawSockaddrInet4{Family: unix.AF_INET, Port: swapped(a.Port()), Addr: a.Addr().As4()}
		_, _, errno = unix.RawSyscall(nr, uintptr(fd), uintptr(unsafe.Pointer(&s)), unsafe.Sizeof(s))
		return failed(errno)
	}
	s := unix.RawSockaddrInet6{Family: unix.AF_INET6, Port: swapped(a.Port()), Addr: a.Addr().As16()}
	if a.Addr().IsLinkLocalUnicast() {
		s.Scope_id = uint32(zone)
	}
	_, _, errno = unix.RawSyscall(nr, uintptr(fd), uintptr(unsafe.Pointer(&s)), unsafe.Sizeof(s))
	return failed(errno)
}

// failed returns the error of a call, or nil.
func failed(errno syscall.Errno) error {
	if errno != 0 {
		return errno
	}
	return nil
}
