// SPDX-License-Identifier: Apache-2.0

package smc

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// MAC is the Ethernet address of a RoCE port, in the order of the wire.
type MAC [6]byte

// String returns six pairs of hexadecimal digits with colons between them.
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// PeerID identifies one instance of an SMC-R stack for as long as it runs: an
// instance number (2 bytes) and the MAC of one of its ports (RFC 7609, appendix
// A.2.1).
type PeerID [8]byte

// NewPeerID joins an instance number, which has to change when the stack
// restarts, with the MAC of one of its ports.
func NewPeerID(instance uint16, mac MAC) PeerID {
	var id PeerID
	binary.BigEndian.PutUint16(id[:], instance)
	copy(id[2:], mac[:])
	return id
}

// Instance returns the instance number.
func (id PeerID) Instance() uint16 { return binary.BigEndian.Uint16(id[:]) }

// MAC returns the Ethernet address in the peer ID.
func (id PeerID) MAC() MAC { return MAC(id[2:]) }

// IsZero reports whether id is unset.
func (id PeerID) IsZero() bool { return id == PeerID{} }

// String returns 16 hexadecimal digits, of which the first four are the instance
// number.
func (id PeerID) String() string { return hex.EncodeToString(id[:]) }

// OS is the operating system that a host names in version 2: four bits of
// DECLINE and of the first contact extension.
type OS uint8

// OSUnknown means that the peer did not name its operating system.
const OSUnknown OS = 0

// OSZOS is z/OS.
const OSZOS OS = 1

// OSLinux is Linux.
const OSLinux OS = 2

// OSAIX is AIX.
const OSAIX OS = 3

// String returns UNKNOWN, ZOS, LINUX or AIX, as the kernel's tools print it.
func (o OS) String() string { return name("OS", o, "UNKNOWN", "ZOS", "LINUX", "AIX") }

// name returns the v-th of names, or the type and the number.
func name[T ~uint8 | ~uint32](typ string, v T, names ...string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", typ, v)
}
