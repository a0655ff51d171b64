// SPDX-License-Identifier: Apache-2.0

//go:build amd64

package main

import (
	"fmt"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A call is a kind of system call that can fail.
type call struct {
	name string
	nr   uint32
	// only restricts the kind to calls with certain arguments.
	only condition
}

// condition selects calls by their arguments.
type condition int

const (
	always    condition = iota
	duplicate           // fcntl that makes a descriptor
	shared              // mmap of a descriptor or of shared memory: not that of the Go runtime
	fallible            // ioctl but for those of seccomp that cannot fail for lack of something
)

// calls are the kinds of calls, by their names on the command line.
var calls = []call{
	{"accept4", unix.SYS_ACCEPT4, always},
	{"bind", unix.SYS_BIND, always},
	{"bpf", unix.SYS_BPF, always},
	{"connect", unix.SYS_CONNECT, always},
	{"dup", unix.SYS_DUP, always},
	{"epoll_create1", unix.SYS_EPOLL_CREATE1, always},
	{"epoll_ctl", unix.SYS_EPOLL_CTL, always},
	{"eventfd2", unix.SYS_EVENTFD2, always},
	{"fcntl", unix.SYS_FCNTL, duplicate},
	{"getsockopt", unix.SYS_GETSOCKOPT, always},
	{"ioctl", unix.SYS_IOCTL, fallible},
	{"listen", unix.SYS_LISTEN, always},
	{"madvise", unix.SYS_MADVISE, always},
	{"memfd_create", unix.SYS_MEMFD_CREATE, always},
	{"mmap", unix.SYS_MMAP, shared},
	{"openat", unix.SYS_OPENAT, always},
	{"pidfd_getfd", unix.SYS_PIDFD_GETFD, always},
	{"pidfd_open", unix.SYS_PIDFD_OPEN, always},
	{"pipe2", unix.SYS_PIPE2, always},
	{"process_vm_readv", unix.SYS_PROCESS_VM_READV, always},
	{"process_vm_writev", unix.SYS_PROCESS_VM_WRITEV, always},
	{"recvmmsg", unix.SYS_RECVMMSG, always},
	{"recvmsg", unix.SYS_RECVMSG, always},
	{"sendmmsg", unix.SYS_SENDMMSG, always},
	{"sendmsg", unix.SYS_SENDMSG, always},
	{"sendto", unix.SYS_SENDTO, always},
	{"setsockopt", unix.SYS_SETSOCKOPT, always},
	{"socket", unix.SYS_SOCKET, always},
	{"socketpair", unix.SYS_SOCKETPAIR, always},
	{"timerfd_create", unix.SYS_TIMERFD_CREATE, always},
}

// find returns the index of a kind of call, or -1.
func find(name string) int {
	return slices.IndexFunc(calls, func(c call) bool { return c.name == name })
}

// Offsets in struct seccomp_data (linux/seccomp.h).
const (
	offsetNumber = 0
	offsetArch   = 4
	offsetArgs   = 16
)

// filter returns the program that stops the calls of a list of names: SECCOMP_RET_TRACE
// with the index of the call. All other calls are allowed.
func filter(list string) ([]unix.SockFilter, error) {
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	// jump skips one instruction if the condition holds.
	jump := func(op uint16, k uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, Jt: 1, K: k}
	}
	ret := func(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }
	allow := ret(unix.SECCOMP_RET_ALLOW)

	prog := []unix.SockFilter{load(offsetArch), jump(unix.BPF_JEQ, unix.AUDIT_ARCH_X86_64), allow}
	for i, c := range calls {
		if list != "all" && !slices.Contains(strings.Split(list, ","), c.name) {
			continue
		}
		var body []unix.SockFilter
		trace := ret(unix.SECCOMP_RET_TRACE | uint32(i))
		switch c.only {
		case always:
			body = []unix.SockFilter{trace}
		case duplicate:
			body = []unix.SockFilter{
				load(offsetArgs + 8),
				jump(unix.BPF_JEQ, unix.F_DUPFD), {Code: unix.BPF_JMP | unix.BPF_JA, K: 1}, trace,
				jump(unix.BPF_JEQ, unix.F_DUPFD_CLOEXEC), allow, trace,
			}
		case fallible:
			// Of the requests of seccomp, only the one that gives the program a descriptor
			// needs memory.
			body = []unix.SockFilter{
				load(offsetArgs + 8),
				jump(unix.BPF_JEQ, unix.SECCOMP_IOCTL_NOTIF_ADDFD), {Code: unix.BPF_JMP | unix.BPF_JA, K: 1}, trace,
				{Code: unix.BPF_ALU | unix.BPF_RSH | unix.BPF_K, K: 8},
				{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0xff},
				jump(unix.BPF_JEQ, '!'), trace, allow,
			}
		case shared:
			body = []unix.SockFilter{
				load(offsetArgs + 3*8), // flags
				jump(unix.BPF_JSET, unix.MAP_ANONYMOUS), trace,
				jump(unix.BPF_JSET, unix.MAP_SHARED), allow, trace,
			}
		}
		prog = append(prog, load(offsetNumber), jump(unix.BPF_JEQ, c.nr), unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(len(body))})
		prog = append(prog, body...)
	}
	if list != "all" {
		for _, name := range strings.Split(list, ",") {
			if find(name) < 0 {
				return nil, fmt.Errorf("no kind of call is %q", name)
			}
		}
	}
	return append(prog, allow), nil
}

// install installs a filter for the calling thread.
func install(prog []unix.SockFilter) error {
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&fprog)))
	if e != 0 {
		return fmt.Errorf("seccomp: %w", e)
	}
	return nil
}
