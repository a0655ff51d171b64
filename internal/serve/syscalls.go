// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"os"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"smcr/internal/confine"
)

// plainCalls are the system calls that a stack that serves uses with any arguments, on all
// architectures. Those of one architecture are in syscalls_GOARCH.go. The end-to-end tests
// end a stack that uses another one (strictEnv).
var plainCalls = map[string]int{
	// Memory and threads of the Go runtime, and of the C library in a build with cgo.
	"brk": unix.SYS_BRK, "madvise": unix.SYS_MADVISE, "mincore": unix.SYS_MINCORE, "mremap": unix.SYS_MREMAP, "munmap": unix.SYS_MUNMAP,
	"exit": unix.SYS_EXIT, "exit_group": unix.SYS_EXIT_GROUP, "futex": unix.SYS_FUTEX, "membarrier": unix.SYS_MEMBARRIER,
	"rseq": unix.SYS_RSEQ, "sched_getaffinity": unix.SYS_SCHED_GETAFFINITY, "sched_yield": unix.SYS_SCHED_YIELD,
	"set_robust_list": unix.SYS_SET_ROBUST_LIST, "sigaltstack": unix.SYS_SIGALTSTACK, "restart_syscall": unix.SYS_RESTART_SYSCALL,
	"rt_sigaction": unix.SYS_RT_SIGACTION, "rt_sigprocmask": unix.SYS_RT_SIGPROCMASK, "rt_sigreturn": unix.SYS_RT_SIGRETURN,
	"rt_sigtimedwait": unix.SYS_RT_SIGTIMEDWAIT,

	// Time.
	"clock_gettime": unix.SYS_CLOCK_GETTIME, "clock_nanosleep": unix.SYS_CLOCK_NANOSLEEP, "gettimeofday": unix.SYS_GETTIMEOFDAY,
	"nanosleep": unix.SYS_NANOSLEEP, "setitimer": unix.SYS_SETITIMER,
	"timer_create": unix.SYS_TIMER_CREATE, "timer_delete": unix.SYS_TIMER_DELETE, "timer_settime": unix.SYS_TIMER_SETTIME,

	// What the process is.
	"getegid": unix.SYS_GETEGID, "geteuid": unix.SYS_GETEUID, "getgid": unix.SYS_GETGID, "getpid": unix.SYS_GETPID,
	"getppid": unix.SYS_GETPPID, "getrandom": unix.SYS_GETRANDOM, "getrusage": unix.SYS_GETRUSAGE, "gettid": unix.SYS_GETTID,
	"getuid": unix.SYS_GETUID, "sysinfo": unix.SYS_SYSINFO, "uname": unix.SYS_UNAME,

	// Descriptors and events.
	"close": unix.SYS_CLOSE, "dup": unix.SYS_DUP, "dup3": unix.SYS_DUP3, "epoll_create1": unix.SYS_EPOLL_CREATE1,
	"epoll_ctl": unix.SYS_EPOLL_CTL, "epoll_pwait": unix.SYS_EPOLL_PWAIT, "epoll_pwait2": unix.SYS_EPOLL_PWAIT2,
	"eventfd2": unix.SYS_EVENTFD2, "fcntl": unix.SYS_FCNTL, "pidfd_open": unix.SYS_PIDFD_OPEN, "pipe2": unix.SYS_PIPE2,
	"ppoll": unix.SYS_PPOLL, "pselect6": unix.SYS_PSELECT6, "read": unix.SYS_READ, "readv": unix.SYS_READV, "write": unix.SYS_WRITE,
	"writev": unix.SYS_WRITEV,

	// Sockets. Creating one is in systemCalls.
	"accept4": unix.SYS_ACCEPT4, "bind": unix.SYS_BIND, "connect": unix.SYS_CONNECT, "getpeername": unix.SYS_GETPEERNAME,
	"getsockname": unix.SYS_GETSOCKNAME, "getsockopt": unix.SYS_GETSOCKOPT, "listen": unix.SYS_LISTEN, "recvfrom": unix.SYS_RECVFROM,
	"recvmmsg": unix.SYS_RECVMMSG, "recvmsg": unix.SYS_RECVMSG, "sendfile": unix.SYS_SENDFILE, "sendmmsg": unix.SYS_SENDMMSG,
	"sendmsg": unix.SYS_SENDMSG, "sendto": unix.SYS_SENDTO, "setsockopt": unix.SYS_SETSOCKOPT, "shutdown": unix.SYS_SHUTDOWN,
	"socketpair": unix.SYS_SOCKETPAIR, "splice": unix.SYS_SPLICE,

	// Files: the directory of the sockets, the state, the configuration, /proc and /sys.
	"faccessat": unix.SYS_FACCESSAT, "faccessat2": unix.SYS_FACCESSAT2, "fchmod": unix.SYS_FCHMOD, "fchmodat": unix.SYS_FCHMODAT,
	"inotify_add_watch": unix.SYS_INOTIFY_ADD_WATCH, "inotify_rm_watch": unix.SYS_INOTIFY_RM_WATCH, // package attach
	"getxattr": unix.SYS_GETXATTR, "setxattr": unix.SYS_SETXATTR, // likewise
	"flock": unix.SYS_FLOCK, "fstat": unix.SYS_FSTAT, "fsync": unix.SYS_FSYNC, "ftruncate": unix.SYS_FTRUNCATE,
	"getcwd": unix.SYS_GETCWD, "getdents64": unix.SYS_GETDENTS64, "lseek": unix.SYS_LSEEK, "mkdirat": unix.SYS_MKDIRAT,
	"openat": unix.SYS_OPENAT, "pread64": unix.SYS_PREAD64, "pwrite64": unix.SYS_PWRITE64, "readlinkat": unix.SYS_READLINKAT,
	"renameat": unix.SYS_RENAMEAT, "renameat2": unix.SYS_RENAMEAT2, "statfs": unix.SYS_STATFS, "statx": unix.SYS_STATX,
	"unlinkat": unix.SYS_UNLINKAT,
}

// ioctlRequests are the requests of ioctl that the stack uses.
var ioctlRequests = []uint32{
	unix.SIOCINQ, unix.SIOCOUTQ, // bytes that wait in a socket
	unix.SIOCATMARK, // urgent data
	unix.NS_GET_USERNS,
	unix.TCGETS, // whether the log is a terminal
	unix.SIOCETHTOOL, unix.SIOCGIFINDEX, unix.SIOCGIFNAME, unix.SIOCGIFMTU, unix.SIOCGIFFLAGS, unix.SIOCGIFHWADDR,
}

// bpfCommands are the commands of bpf that the stack uses after its start, when it loads no
// programs any more (package divert).
var bpfCommands = []uint32{
	unix.BPF_MAP_LOOKUP_ELEM, unix.BPF_MAP_UPDATE_ELEM, unix.BPF_MAP_DELETE_ELEM, unix.BPF_MAP_GET_NEXT_KEY,
	unix.BPF_MAP_LOOKUP_BATCH, unix.BPF_MAP_DELETE_BATCH, unix.BPF_OBJ_GET_INFO_BY_FD,
}

// systemCalls returns all system calls that a stack that serves uses. What is not in the
// list is above all: executing programs, creating processes, tracing others, mounting,
// changing namespaces and identities, loading modules and eBPF programs, io_uring, and
// memory that can be executed.
func systemCalls() []confine.Call {
	// The order of the arguments of clone differs on s390x (clone(2)).
	cloneFlags := 0
	if runtime.GOARCH == "s390x" {
		cloneFlags = 1
	}
	noExec := &confine.Cond{Arg: 2, Without: unix.PROT_EXEC}
	calls := []confine.Call{
		{Name: "bpf", Nr: unix.SYS_BPF, If: &confine.Cond{Arg: 0, OneOf: bpfCommands}},
		{Name: "clone", Nr: unix.SYS_CLONE, If: &confine.Cond{Arg: cloneFlags, With: unix.CLONE_THREAD}},
		{Name: "ioctl", Nr: unix.SYS_IOCTL, If: &confine.Cond{Arg: 1, OneOf: ioctlRequests}},
		{Name: "mmap", Nr: unix.SYS_MMAP, If: noExec},
		{Name: "mprotect", Nr: unix.SYS_MPROTECT, If: noExec},
		{Name: "prctl", Nr: unix.SYS_PRCTL, If: &confine.Cond{Arg: 0, OneOf: []uint32{unix.PR_SET_VMA}}},
		{Name: "prlimit64", Nr: unix.SYS_PRLIMIT64, If: &confine.Cond{Arg: 0, OneOf: []uint32{0, uint32(os.Getpid())}}},
		{Name: "socket", Nr: unix.SYS_SOCKET, If: &confine.Cond{Arg: 0, OneOf: []uint32{
			unix.AF_UNIX, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK, unix.AF_PACKET,
		}}},
		// Go stops its goroutines, and package bounded wakes threads, with signals.
		{Name: "tgkill", Nr: unix.SYS_TGKILL, If: &confine.Cond{Arg: 0, OneOf: []uint32{uint32(os.Getpid())}}},
	}
	for name, nr := range plainCalls {
		calls = append(calls, confine.Call{Name: name, Nr: nr})
	}
	for name, nr := range archCalls {
		calls = append(calls, confine.Call{Name: name, Nr: nr})
	}
	slices.SortFunc(calls, func(a, b confine.Call) int { return a.Nr - b.Nr })
	return calls
}
