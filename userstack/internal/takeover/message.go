// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"syscall"

	"smcr/stats"
)

// version is the version of the protocol, and of the meaning of what is handed over. It is a
// string so that tests can link a program that has another one.
var version = "2"

// Version returns the version of the protocol. Processes with different versions do not take
// over from each other.
func Version() uint32 {
	n, _ := strconv.ParseUint(version, 10, 32)
	return uint32(n)
}

// ErrMalformed means that a message does not follow the format.
var ErrMalformed = errors.New("takeover: malformed message")

// A VersionError means that the two processes have different versions of the protocol. It
// matches syscall.EPROTO. The text says what to do.
type VersionError struct{ Old, New uint32 }

// Error returns the versions and what to do.
func (e *VersionError) Error() string {
	return fmt.Sprintf("the stack that runs is of a release of smcr from which this one cannot take over (protocol versions %d and %d): "+
		"stop the old one first, which ends its connections", e.Old, e.New)
}

// Unwrap returns EPROTO.
func (e *VersionError) Unwrap() error { return syscall.EPROTO }

// Type is the kind of a message.
type Type uint32

// The types of messages, in the order in which they are sent.
const (
	// Hello asks for the takeover.
	Hello Type = iota + 1
	// Refuse says in Text why not.
	Refuse
	// Offer has the lock of the place as a file.
	Offer
	// Ready says that nothing that is likely to fail is left to do.
	Ready
	// Sockets has the UDP sockets of RoCE version 2 as files.
	Sockets
	// Frozen has Stats, Fallbacks and Known.
	Frozen
	// Commit says that the sender serves as soon as Done arrives.
	Commit
	// Done says that the receiver is the stack now.
	Done
	// Ended has what Stats and Fallbacks have counted after Frozen.
	Ended
)

var names = [...]string{Hello: "hello", Refuse: "refuse", Offer: "offer", Ready: "ready", Sockets: "sockets",
	Frozen: "frozen", Commit: "commit", Done: "done", Ended: "ended"}

// String returns the type's name in lower case.
func (t Type) String() string {
	if int(t) < len(names) && names[t] != "" {
		return names[t]
	}
	return "type " + strconv.FormatUint(uint64(t), 10)
}

// A Group is the UDP sockets of one version of IP on one netdev, in a message of type
// Sockets.
type Group struct {
	Index int // of the netdev
	IPv6  bool
	Files int // how many of the message's files
}

// A Known is a host that is known (inside.Known), in a message of type Frozen.
type Known struct {
	Host netip.Addr
	MAC  []byte `json:",omitempty"` // of a neighbour; behind a router empty
	Age  int64  `json:",omitempty"` // in seconds
}

// Message is one message. Each type uses some of the fields.
type Message struct {
	Type      Type             `json:"-"`
	Release   string           `json:",omitempty"` // of smcr, for people
	Text      string           `json:",omitempty"`
	Groups    []Group          `json:",omitempty"`
	Stats     *stats.Stats     `json:",omitempty"`
	Fallbacks *stats.Fallbacks `json:",omitempty"`
	Known     []Known          `json:",omitempty"` // nil from a release that does not hand it over
	// Files come with the message. The receiver must close them.
	Files []*os.File `json:"-"`
}

// MaxFiles is how many files a message may have. The kernel allows 253.
const MaxFiles = 128

const (
	magic      = "smcrtake"
	headerLen  = len(magic) + 8
	maxMessage = 128 << 10
)

// appendBinary appends the bytes of m.
func (m *Message) appendBinary(b []byte) ([]byte, error) {
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint32(b, Version())
	b = binary.LittleEndian.AppendUint32(b, uint32(m.Type))
	body, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("takeover: %w", err)
	}
	if len(b)+len(body) > maxMessage {
		return nil, fmt.Errorf("takeover: %v of %d bytes: %w", m.Type, len(body), ErrMalformed)
	}
	return append(b, body...), nil
}

// parse returns the message in b, without its files. The error is a VersionError with only
// the version of the sender if it has another one.
func parse(b []byte) (m Message, sender uint32, err error) {
	if len(b) < headerLen || string(b[:len(magic)]) != magic {
		return m, 0, fmt.Errorf("%w: no header", ErrMalformed)
	}
	sender = binary.LittleEndian.Uint32(b[len(magic):])
	m.Type = Type(binary.LittleEndian.Uint32(b[len(magic)+4:]))
	if sender != Version() {
		return m, sender, nil
	}
	if int(m.Type) >= len(names) || names[m.Type] == "" {
		return m, sender, fmt.Errorf("%w: %v", ErrMalformed, m.Type)
	}
	if err := json.NewDecoder(bytes.NewReader(b[headerLen:])).Decode(&m); err != nil {
		return m, sender, fmt.Errorf("%w: %v: %w", ErrMalformed, m.Type, err)
	}
	return m, sender, nil
}
