// SPDX-License-Identifier: Apache-2.0

package launch

import "golang.org/x/sys/unix"

// System calls that not every architecture has; negative where absent.
const (
	sysAccept      = unix.SYS_ACCEPT
	sysEpollCreate = -1

	auditArch     = unix.AUDIT_ARCH_AARCH64
	x32SyscallBit = 0
	// argLow is the offset of the low word of a 64-bit argument.
	argLow = 0
)
