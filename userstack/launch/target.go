// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/userstack/internal/bounded"
)

// This file reads and writes the process that stopped in a system call. A
// result belongs to this process only if notif.valid returns true afterwards.

var errNotSocket = errors.New("launch: not a socket")

// socketInode returns the inode number of socket fd in thread tid. It
// identifies the socket as long as the socket exists.
func socketInode(tid, fd int) (uint64, error) {
	path := make([]byte, 0, 40)
	path = append(path, "/proc/"...)
	path = strconv.AppendInt(path, int64(tid), 10)
	path = append(path, "/fd/"...)
	path = strconv.AppendInt(path, int64(fd), 10)
	path = append(path, 0)
	var buf [64]byte
	n, _, e := unix.Syscall6(unix.SYS_READLINKAT, atFDCWD, uintptr(unsafe.Pointer(&path[0])),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)), 0, 0)
	if e != 0 {
		return 0, e
	}
	return parseSocketLink(buf[:n])
}

// atFDCWD is AT_FDCWD as the value of a register.
const atFDCWD = ^uintptr(99)

func parseSocketLink(link []byte) (uint64, error) {
	num, ok := bytes.CutPrefix(link, []byte("socket:["))
	if !ok || len(num) < 2 {
		return 0, errNotSocket
	}
	return strconv.ParseUint(string(num[:len(num)-1]), 10, 64)
}

// isSocket reports whether fd is a socket, without asking a file system.
func isSocket(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFSOCK
}

// socket duplicates descriptor fd of thread tid if it is the socket of the
// inode. See looked for n and patience.
func (x *looks) socket(n *notif, tid, fd int, inode uint64, patience time.Duration) (int, error) {
	dup, _, err := x.checkedSocket(n, tid, fd, inode, patience, nil)
	return dup, err
}

// checkedSocket is like socket, and calls check with the duplicate. If check
// returns a reason, checkedSocket returns it with errNotSocket.
func (x *looks) checkedSocket(n *notif, tid, fd int, inode uint64, patience time.Duration, check func(fd int) string) (int, string, error) {
	type result struct {
		fd     int
		reason string
		err    error
	}
	r, err := looked(x, n, tid, patience, func() (result, func()) {
		// Check the link first: reading it does not involve a file system, and
		// closing the copy of another file may take long.
		if !isLinked(tid, fd, inode) {
			return result{-1, "", errMoved}, nil
		}
		dup, err := x.threads.getFD(tid, fd)
		if err != nil {
			return result{-1, "", err}, nil
		}
		closeIt := func() { _ = unix.Close(dup) }
		if !isSocket(dup) { // the program has replaced the descriptor
			return result{-1, "", errNotSocket}, closeIt
		}
		var st unix.Stat_t
		if err := unix.Fstat(dup, &st); err != nil || st.Ino != inode {
			return result{-1, "", errMoved}, closeIt
		}
		if check != nil {
			if reason := check(dup); reason != "" {
				return result{-1, reason, errNotSocket}, closeIt
			}
		}
		return result{dup, "", nil}, nil
	}, func(r result) {
		if r.fd >= 0 {
			_ = unix.Close(r.fd)
		}
	})
	if err != nil {
		return -1, "", err
	}
	return r.fd, r.reason, r.err
}

// isLinked reports whether descriptor fd of thread tid is the socket of the inode.
func isLinked(tid, fd int, inode uint64) bool {
	got, err := socketInode(tid, fd)
	return err == nil && got == inode
}

// fdFlags returns the open flags of n's descriptor, O_CLOEXEC included.
func (x *looks) fdFlags(n *notif) (int, error) {
	type result struct {
		flags int
		err   error
	}
	r, err := looked(x, n, n.tid(), lookPatience, func() (result, func()) {
		f, err := fdFlags(n.tid(), n.fdArg())
		return result{f, err}, nil
	}, nil)
	if err != nil {
		return 0, err
	}
	return r.flags, r.err
}

// fdFlags returns the open flags of descriptor fd. It is part of a look: for an
// epoll instance the kernel waits for its lock.
func fdFlags(tid, fd int) (int, error) {
	b, err := withRoom(func() ([]byte, error) {
		return os.ReadFile("/proc/" + strconv.Itoa(tid) + "/fdinfo/" + strconv.Itoa(fd))
	})
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte("flags:")); ok {
			f, err := strconv.ParseUint(string(bytes.TrimSpace(v)), 8, 32)
			return int(f), err
		}
	}
	return 0, errors.New("launch: no flags in fdinfo")
}

// read returns size bytes at address addr in the memory of n's process. See
// looked for patience.
func (n *notif) read(addr uint64, size int, patience time.Duration) ([]byte, error) {
	type result struct {
		b   []byte
		err error
	}
	r, err := looked(n.l.looks, n, n.tid(), patience, func() (result, func()) {
		b := make([]byte, size)
		return result{b, readMem(n.tid(), addr, b)}, nil
	}, nil)
	if err != nil {
		return nil, err
	}
	return r.b, r.err
}

// readMem fills b from address addr of thread tid, or fails. It is part of a
// look.
func readMem(tid int, addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	n, err := withRoom(func() (int, error) {
		return unix.ProcessVMReadv(tid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
	})
	if err != nil {
		return err
	}
	if n != len(b) {
		return unix.EFAULT
	}
	return nil
}

// parseSockaddr decodes the address given to connect(). flowinfo is that of
// IPv6, 0 otherwise. Families other than IPv4 and IPv6 give an invalid
// address.
func parseSockaddr(b []byte) (ap netip.AddrPort, flowinfo uint32) {
	if len(b) < unix.SizeofSockaddrInet4 {
		return ap, 0
	}
	port := binary.BigEndian.Uint16(b[2:])
	switch binary.NativeEndian.Uint16(b) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port), 0
	case unix.AF_INET6:
		if len(b) < unix.SizeofSockaddrInet6-4 { // without the scope id, as RFC 2133 had it
			return ap, 0
		}
		a := netip.AddrFrom16([16]byte(b[8:24]))
		if len(b) >= unix.SizeofSockaddrInet6 {
			if z := binary.NativeEndian.Uint32(b[24:]); z != 0 && !a.Is4In6() {
				a = a.WithZone(strconv.FormatUint(uint64(z), 10))
			}
		}
		return netip.AddrPortFrom(a, port), binary.NativeEndian.Uint32(b[4:])
	}
	return ap, 0
}

// appendSockaddr encodes ap as a socket of the domain reports it.
func appendSockaddr(b []byte, domain int, ap netip.AddrPort) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(domain))
	b = binary.BigEndian.AppendUint16(b, ap.Port())
	if domain == unix.AF_INET {
		var a [4]byte
		if u := ap.Addr().Unmap(); u.Is4() {
			a = u.As4()
		}
		b = append(b, a[:]...)
		return append(b, 0, 0, 0, 0, 0, 0, 0, 0)
	}
	b = append(b, 0, 0, 0, 0)
	var a [16]byte
	if ap.Addr().IsValid() {
		a = ap.Addr().As16()
	}
	b = append(b, a[:]...)
	zone, _ := strconv.ParseUint(ap.Addr().Zone(), 10, 32)
	return binary.NativeEndian.AppendUint32(b, uint32(zone))
}

// writeSockaddr stores sa at addr as accept and getpeername do: it is cut to
// the length at lenAddr, and the full length is stored there. If addr is null
// and mayOmit is set (accept), nothing is written.
func (n *notif) writeSockaddr(addr, lenAddr uint64, sa []byte, mayOmit bool) error {
	if addr == 0 && mayOmit {
		return nil
	}
	return n.l.looks.try(n, n.tid(), 0, func() error { return n.storeSockaddr(addr, lenAddr, sa) })
}

// storeSockaddr is part of a look.
func (n *notif) storeSockaddr(addr, lenAddr uint64, sa []byte) error {
	var l [4]byte
	if err := readMem(int(n.PID), lenAddr, l[:]); exhausted(err) {
		return err
	} else if err != nil {
		return unix.EFAULT
	}
	size := int32(binary.NativeEndian.Uint32(l[:]))
	if size < 0 {
		return unix.EINVAL
	}
	defer n.l.stores.begin(n)()
	mem, err := n.memory()
	if err != nil {
		return err
	}
	defer mem.close()
	if m := min(int(size), len(sa)); m > 0 {
		if err := mem.store(addr, sa[:m]); err != nil {
			return err
		}
	}
	binary.NativeEndian.PutUint32(l[:], uint32(len(sa)))
	return mem.store(lenAddr, l[:])
}

// writeOption stores a socket option's value as getsockopt does.
func (n *notif) writeOption(value []byte) error {
	return n.l.looks.try(n, n.tid(), 0, func() error { return n.storeOption(value) })
}

// storeOption is part of a look.
func (n *notif) storeOption(value []byte) error {
	defer n.l.stores.begin(n)()
	mem, err := n.memory()
	if err != nil {
		return err
	}
	defer mem.close()
	var l [4]byte
	if err := readMem(int(n.PID), n.Args[4], l[:]); exhausted(err) {
		return err
	} else if err != nil {
		return unix.EFAULT
	}
	size := int32(binary.NativeEndian.Uint32(l[:]))
	if size < 0 {
		return unix.EINVAL
	}
	value = value[:min(len(value), int(size))]
	if len(value) > 0 {
		if err := mem.store(n.Args[3], value); err != nil {
			return err
		}
	}
	binary.NativeEndian.PutUint32(l[:], uint32(len(value)))
	return mem.store(n.Args[4], l[:])
}

func toAddrPort(sa unix.Sockaddr) netip.AddrPort {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		ip := netip.AddrFrom16(a.Addr)
		if a.ZoneId != 0 && !ip.Is4In6() {
			ip = ip.WithZone(strconv.FormatUint(uint64(a.ZoneId), 10))
		}
		return netip.AddrPortFrom(ip, uint16(a.Port))
	}
	return netip.AddrPort{}
}

func errnoOr(err error, or syscall.Errno) syscall.Errno {
	var e syscall.Errno
	if errors.As(err, &e) {
		return e
	}
	return or
}

// siginfoPID reads si_pid of a siginfo that waitid filled in. The union begins
// at the first offset after three ints that suits a pointer.
func siginfoPID(i *unix.Siginfo) int {
	const union = (3*4 + unsafe.Sizeof(uintptr(0)) - 1) &^ (unsafe.Sizeof(uintptr(0)) - 1)
	return int(*(*int32)(unsafe.Add(unsafe.Pointer(i), union)))
}

// errMoved means that the program's descriptor is another file now.
var errMoved = errors.New("launch: the descriptor changed")

// sockaddr reads the address given to connect(). The result is invalid for
// families other than IPv4 and IPv6.
func (n *notif) sockaddr() (remote netip.AddrPort, flowinfo uint32, err error) {
	l := int(int32(n.Args[2]))
	if l < unix.SizeofSockaddrInet4 || l > unix.SizeofSockaddrAny {
		return remote, 0, nil
	}
	sa, err := n.read(n.Args[1], min(l, unix.SizeofSockaddrInet6), lookPatience)
	if err != nil {
		return remote, 0, err
	}
	remote, flowinfo = parseSockaddr(sa)
	return remote, flowinfo, nil
}

// localAddr returns the local address of a socket, or the zero value. While a program keeps the lock of
// the socket, it waits with one thread, and the launcher goes on for the other programs.
func localAddr(fd int) netip.AddrPort {
	sa, err := bounded.Sockname(fd)
	if err != nil {
		return netip.AddrPort{}
	}
	return toAddrPort(sa)
}

// errnoOf returns the errno with which a call is answered, 0 if err is nil.
func errnoOf(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	return errnoOr(err, unix.EINVAL)
}
