// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"encoding/binary"
	"fmt"
	"syscall"
)

// Version is the version of the protocol. Hello and Welcome carry it in Size. A launcher
// and a stack of different versions refuse each other with a [VersionError]: they are the
// same program, so there is no negotiation.
//
// In every version, the first message of each side begins with the type, has the errno at
// offset 16 and the version at offset 28, as in [Message]. All else may change with the
// version.
const Version = 6

// A VersionError means that a launcher and a stack have different versions of the protocol,
// because smcr was upgraded while one of them ran. It matches [syscall.EPROTO]. The text says
// what to do.
type VersionError struct {
	Launcher, Stack uint32
}

// Error returns the versions and what to do.
func (e *VersionError) Error() string {
	what := "restart the stack, for example with 'systemctl restart smcr', which ends its connections"
	if e.Launcher < e.Stack {
		what = "use the release of the stack for 'smcr run'"
	}
	return fmt.Sprintf("broker: 'smcr run' and the stack of this network namespace are of different releases of smcr (protocol versions %d and %d): %s",
		e.Launcher, e.Stack, what)
}

// Unwrap returns EPROTO.
func (e *VersionError) Unwrap() error { return syscall.EPROTO }

// otherVersion returns the first message of a process that has another version of the
// protocol. ok is false for all other messages. Only Type, Errno and Size of m are set,
// because nothing else has the same place in all versions.
func otherVersion(b []byte) (m Message, ok bool) {
	if len(b) < headerLen {
		return m, false
	}
	le := binary.LittleEndian
	m = Message{Type: Type(b[0]), Errno: int32(le.Uint32(b[16:])), Size: le.Uint32(b[28:])}
	return m, (m.Type == TypeHello || m.Type == TypeWelcome) && m.Size != Version
}
