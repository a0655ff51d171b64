// SPDX-License-Identifier: Apache-2.0

package confine

import "golang.org/x/sys/unix"

const (
	auditArch = unix.AUDIT_ARCH_PPC64LE
	// argLow is the offset of the low word of a 64-bit argument.
	argLow = 0
)
