// SPDX-License-Identifier: Apache-2.0

package serve

import "golang.org/x/sys/unix"

// archCalls are further system calls of this architecture.
var archCalls = map[string]int{
	"accept": unix.SYS_ACCEPT, "fstatat": unix.SYS_FSTATAT, "getrlimit": unix.SYS_GETRLIMIT,
}
