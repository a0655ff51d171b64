// SPDX-License-Identifier: Apache-2.0

package serve

import "golang.org/x/sys/unix"

// archCalls are further system calls of this architecture.
var archCalls = map[string]int{
	"accept": unix.SYS_ACCEPT, "dup2": unix.SYS_DUP2, "epoll_wait": unix.SYS_EPOLL_WAIT, "newfstatat": unix.SYS_NEWFSTATAT,
	"poll": unix.SYS_POLL, "getrlimit": unix.SYS_GETRLIMIT, "ugetrlimit": unix.SYS_UGETRLIMIT, "readlink": unix.SYS_READLINK,
}
