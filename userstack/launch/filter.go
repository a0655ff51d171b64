// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"maps"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data (linux/seccomp.h).
const (
	dataNr   = 0
	dataArch = 4
	dataArgs = 16
)

const (
	retAllow  = 0x7fff0000
	retNotify = 0x7fc00000
	retErrno  = 0x00050000
)

const (
	ipprotoMPTCP  = 262
	msgFastOpen   = 0x20000000
	soZeroCopy    = 60
	soBufLock     = 72
	tcpULP        = 31
	tcpRepair     = 19
	tcpFOConnect  = 30
	sndBufLockBit = 1
	rcvBufLockBit = 2
)

// Options of level SOL_SOCKET that the kernel answers for a socketpair as the
// program expects: those that act on the reading and writing of the program,
// those that the launcher carries over (see pair.carryOptions), and those whose
// value points into the memory of the program. All others are trapped, because
// the TCP socket has their values.
var (
	bothOwn = []uint32{
		unix.SO_RCVBUF, unix.SO_REUSEADDR, unix.SO_OOBINLINE, unix.SO_RCVLOWAT, unix.SO_PEEK_OFF, soBufLock,
		unix.SO_RCVTIMEO, unix.SO_RCVTIMEO_NEW, unix.SO_SNDTIMEO, unix.SO_SNDTIMEO_NEW, soZeroCopy, unix.SO_TXTIME,
		unix.SO_BINDTODEVICE, unix.SO_BINDTOIFINDEX, unix.SO_ATTACH_FILTER, unix.SO_LOCK_FILTER, // SO_ATTACH_FILTER is also SO_GET_FILTER
		unix.SO_TIMESTAMP, unix.SO_TIMESTAMP_NEW, unix.SO_TIMESTAMPNS, unix.SO_TIMESTAMPNS_NEW, unix.SO_TIMESTAMPING, unix.SO_TIMESTAMPING_NEW,
	}
	getOwn = append([]uint32{
		unix.SO_TYPE, unix.SO_ACCEPTCONN, unix.SO_SNDBUF, unix.SO_KEEPALIVE, unix.SO_LINGER, unix.SO_PRIORITY, unix.SO_MEMINFO,
	}, bothOwn...)
	setOwn = append([]uint32{
		unix.SO_RCVBUFFORCE, unix.SO_DETACH_FILTER, unix.SO_ATTACH_BPF,
		unix.SO_ATTACH_REUSEPORT_CBPF, unix.SO_ATTACH_REUSEPORT_EBPF, unix.SO_DETACH_REUSEPORT_BPF,
	}, bothOwn...)
)

// block is the code for one system call. It begins when the call is known, and
// every path ends in a return.
type block []unix.SockFilter

func stmt(code uint16, k uint32) unix.SockFilter { return unix.SockFilter{Code: code, K: k} }

func load(off uint32) unix.SockFilter { return stmt(unix.BPF_LD|unix.BPF_W|unix.BPF_ABS, off) }

func ret(k uint32) unix.SockFilter { return stmt(unix.BPF_RET|unix.BPF_K, k) }

func errnoRet(e syscall.Errno) unix.SockFilter { return ret(retErrno | uint32(e)) }

func jump(op uint16, k uint32, jt, jf int) unix.SockFilter {
	if jt > 255 || jf > 255 {
		panic("launch: BPF jump too far")
	}
	return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, K: k, Jt: uint8(jt), Jf: uint8(jf)}
}

func arg(n uint32) uint32 { return dataArgs + 8*n + argLow }

func argHigh(n uint32) uint32 { return dataArgs + 8*n + 4 - argLow }

// whenEqual runs then if the accumulator is k, and otherwise continues after
// it.
func whenEqual(k uint32, then block) block {
	return append(block{jump(unix.BPF_JEQ, k, 0, len(then))}, then...)
}

// sends is for calls that send. Their flags are argument n. A call with urgent
// data is trapped, because a local connection takes a detour first.
func sends(n uint32) block {
	return block{
		load(arg(n)),
		jump(unix.BPF_JSET, msgFastOpen, 0, 1), errnoRet(unix.EOPNOTSUPP),
		jump(unix.BPF_JSET, unix.MSG_OOB, 0, 1), ret(retNotify),
		ret(retAllow),
	}
}

// sendsTo is sends for sendto(), which is also trapped if it has an address: TCP ignores
// it on a connected socket, and a socketpair refuses it.
func sendsTo() block {
	b := sends(3)
	return append(b[:len(b)-1],
		load(arg(4)),
		jump(unix.BPF_JEQ, 0, 1, 0), ret(retNotify),
		load(argHigh(4)),
		jump(unix.BPF_JEQ, 0, 1, 0), ret(retNotify),
		ret(retAllow),
	)
}

// receives is for calls that receive. Their flags are argument n. A unix socket
// ignores these flags.
func receives(n uint32) block {
	return block{
		load(arg(n)),
		jump(unix.BPF_JSET, unix.MSG_TRUNC|unix.MSG_ERRQUEUE, 0, 1), ret(retNotify),
		ret(retAllow),
	}
}

// ioctls traps the requests that a socketpair answers differently from a TCP
// socket.
func ioctls() block {
	b := block{load(arg(1))}
	for _, req := range ioctlRequests() {
		b = append(b, whenEqual(req, block{ret(retNotify)})...)
	}
	return append(b, ret(retAllow))
}

// options traps calls for the levels that a socketpair does not have, and for
// all SOL_SOCKET options but the given ones.
func options(own []uint32, tcp block) block {
	sock := block{load(arg(2))}
	for _, n := range own {
		sock = append(sock, whenEqual(n, block{ret(retAllow)})...)
	}
	sock = append(sock, ret(retNotify))
	b := block{load(arg(1))}
	b = append(b, whenEqual(unix.SOL_SOCKET, sock)...)
	b = append(b, whenEqual(unix.IPPROTO_TCP, append(tcp, ret(retNotify)))...)
	return append(b, ret(retNotify))
}

// prologue allows calls of other ABIs and loads the number of the call.
func prologue() []unix.SockFilter {
	p := []unix.SockFilter{load(dataArch), jump(unix.BPF_JEQ, auditArch, 1, 0), ret(retAllow), load(dataNr)}
	if x32SyscallBit != 0 {
		p = append(p, jump(unix.BPF_JSET, x32SyscallBit, 0, 1), ret(retAllow))
	}
	return p
}

// filterProgram builds the classic BPF program. System calls that send and
// receive data are first: of the frequent calls, only these are not in the
// kernel's bitmap of calls that are always allowed.
func filterProgram(allowIOUring bool) []unix.SockFilter {
	notify := block{ret(retNotify)}
	type rule struct {
		nr int
		b  block
	}
	rules := []rule{
		{unix.SYS_SENDTO, sendsTo()},
		{unix.SYS_SENDMSG, sends(2)},
		{unix.SYS_SENDMMSG, sends(3)},
		{unix.SYS_RECVFROM, receives(3)},
		{unix.SYS_RECVMSG, receives(2)},
		{unix.SYS_IOCTL, ioctls()},
		{unix.SYS_SOCKET, append(append(block{load(arg(2))}, whenEqual(ipprotoMPTCP, block{errnoRet(unix.EPROTONOSUPPORT)})...), ret(retAllow))},
		{unix.SYS_SETSOCKOPT, options(setOwn, append(block{load(arg(2))}, whenEqual(tcpFOConnect, block{errnoRet(unix.EOPNOTSUPP)})...))},
		{unix.SYS_GETSOCKOPT, options(getOwn, nil)},
		{unix.SYS_ACCEPT4, notify},
		{sysAccept, notify},
		{unix.SYS_CONNECT, notify},
		{unix.SYS_LISTEN, notify},
		// Shorter addresses are those of other families, such as netlink, which resolvers bind.
		{unix.SYS_BIND, block{load(arg(2)), jump(unix.BPF_JGE, unix.SizeofSockaddrInet4, 0, 1), ret(retNotify), ret(retAllow)}},
		{unix.SYS_GETPEERNAME, notify},
		{unix.SYS_GETSOCKNAME, notify},
		{unix.SYS_EPOLL_CREATE1, notify},
		{sysEpollCreate, notify},
		{unix.SYS_LANDLOCK_CREATE_RULESET, notify},
	}
	if !allowIOUring {
		rules = append(rules, rule{unix.SYS_IO_URING_SETUP, block{errnoRet(unix.ENOSYS)}})
	}
	p := prologue()
	for _, r := range rules {
		if r.nr >= 0 {
			p = append(p, whenEqual(uint32(r.nr), r.b)...)
		}
	}
	return append(p, ret(retAllow))
}

// ioctlRequests returns the trapped requests of ioctl(), in order.
func ioctlRequests() []uint32 { return slices.Sorted(maps.Keys(ioctlAnswers)) }
