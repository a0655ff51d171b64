// SPDX-License-Identifier: Apache-2.0

package launch

import "golang.org/x/sys/unix"

// System calls that not every architecture has; negative where absent.
const (
	sysAccept      = unix.SYS_ACCEPT
	sysEpollCreate = unix.SYS_EPOLL_CREATE

	auditArch = unix.AUDIT_ARCH_X86_64
	// x32SyscallBit marks the x32 ABI, whose calls are not trapped.
	x32SyscallBit = 0x40000000
	// argLow is the offset of the low word of a 64-bit argument.
	argLow = 0
)
