// SPDX-License-Identifier: Apache-2.0

package kernelsmc

import (
	"encoding/binary"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data (linux/seccomp.h).
const (
	dataNr   = 0
	dataArch = 4
	dataArgs = 16
)

const (
	// sockTypeMask is the part of a socket type that is no flag (SOCK_TYPE_MASK in linux/net.h).
	sockTypeMask = 0xf
	ipprotoMPTCP = 262
	// x32 marks the calls of the x32 ABI of x86-64, which have other numbers.
	x32 = 0x40000000
)

// auditArch are the values of seccomp_data.arch for programs of the ABI that this program has.
var auditArch = map[string]uint32{
	"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64, "ppc64le": unix.AUDIT_ARCH_PPC64LE, "s390x": unix.AUDIT_ARCH_S390X,
}

// Where a jump of the filter goes.
const (
	next   = iota
	after  // the one after next
	allow  // the kernel does the call
	notify // the supervisor does
)

// filter returns the classic BPF program: it has the supervisor answer socket() for a TCP or Multipath TCP socket and the creation
// of Landlock rulesets, and nothing else.
func filter() []unix.SockFilter {
	var p []unix.SockFilter
	load := func(off uint32) {
		p = append(p, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off})
	}
	low := binary.NativeEndian.Uint32([]byte{0, 0, 0, 4}) & 4 // offset of the low word of an argument: 4 if it is the last one
	arg := func(n uint32) { load(dataArgs + 8*n + low) }
	jump := func(op uint16, k uint32, yes, no uint8) {
		p = append(p, unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, K: k, Jt: yes, Jf: no})
	}
	load(dataArch)
	jump(unix.BPF_JEQ, auditArch[runtime.GOARCH], next, allow)
	load(dataNr)
	jump(unix.BPF_JSET, x32, allow, next)
	jump(unix.BPF_JEQ, unix.SYS_LANDLOCK_CREATE_RULESET, notify, next)
	jump(unix.BPF_JEQ, unix.SYS_SOCKET, next, allow)
	arg(0)
	jump(unix.BPF_JEQ, unix.AF_INET, after, next)
	jump(unix.BPF_JEQ, unix.AF_INET6, next, allow)
	arg(1)
	p = append(p, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: sockTypeMask})
	jump(unix.BPF_JEQ, unix.SOCK_STREAM, next, allow)
	arg(2)
	jump(unix.BPF_JEQ, 0, notify, next)
	jump(unix.BPF_JEQ, unix.IPPROTO_TCP, notify, next)
	jump(unix.BPF_JEQ, ipprotoMPTCP, notify, allow)

	for i := range p {
		if p[i].Code&7 == unix.BPF_JMP {
			to := [...]uint8{next: 0, after: 1, allow: uint8(len(p) - i - 1), notify: uint8(len(p) - i)}
			p[i].Jt, p[i].Jf = to[p[i].Jt], to[p[i].Jf]
		}
	}
	return append(p, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF})
}

// install installs the filter on this thread, which keeps its privileges but gets no others, and returns its listener.
func install() (fd int, err error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return -1, err
	}
	prog := filter()
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	// socket() does not wait, so no signal handler needs to run before it is answered, and no signal must make it fail with EINTR.
	// Before Linux 5.19 it may.
	for _, options := range []uintptr{unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, 0} {
		r, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, options|unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&fprog)))
		if e == 0 {
			return int(r), nil
		}
		if err = e; e != unix.EINVAL {
			break
		}
	}
	return -1, err
}
