// SPDX-License-Identifier: Apache-2.0

package launch

import "golang.org/x/sys/unix"

// System calls that not every architecture has. Very old programs use socketcall
// instead, whose arguments a filter cannot see: their connections are native TCP.
const (
	sysAccept      = unix.SYS_ACCEPT
	sysEpollCreate = unix.SYS_EPOLL_CREATE

	auditArch     = unix.AUDIT_ARCH_PPC64LE
	x32SyscallBit = 0
	// argLow is the offset of the low word of a 64-bit argument.
	argLow = 0
)
