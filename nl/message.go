// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
)

// Sizes of headers in bytes.
const (
	nlmsgHeaderLen = 16 // struct nlmsghdr
	genlHeaderLen  = 4  // struct genlmsghdr
)

var errShortDatagram = errors.New("nl: datagram ends within a message")

func align4(n int) int { return (n + 3) &^ 3 }

// appendHeader appends the header of a message. The payload must follow, and then
// endMessage must be called.
func appendHeader(b []byte, h netlink.Header) []byte {
	ne := binary.NativeEndian
	b = ne.AppendUint32(b, 0)
	b = ne.AppendUint16(b, uint16(h.Type))
	b = ne.AppendUint16(b, uint16(h.Flags))
	b = ne.AppendUint32(b, h.Sequence)
	return ne.AppendUint32(b, h.PID)
}

// endMessage sets the length of the message that begins at b[at], and pads the message to
// a multiple of four bytes. The length does not include the padding.
func endMessage(b []byte, at int) []byte {
	n := len(b) - at
	binary.NativeEndian.PutUint32(b[at:], uint32(n))
	for range align4(n) - n {
		b = append(b, 0)
	}
	return b
}

// appendMessage appends a netlink message with its payload.
func appendMessage(b []byte, h netlink.Header, data []byte) []byte {
	at := len(b)
	return endMessage(append(appendHeader(b, h), data...), at)
}

// nextMessage returns the first netlink message of a datagram and the bytes after it. The
// payload is part of b. The last message may lack its padding.
func nextMessage(b []byte) (m netlink.Message, rest []byte, err error) {
	if len(b) < nlmsgHeaderLen {
		return m, nil, errShortDatagram
	}
	ne := binary.NativeEndian
	h := netlink.Header{
		Length:   ne.Uint32(b),
		Type:     netlink.HeaderType(ne.Uint16(b[4:])),
		Flags:    netlink.HeaderFlags(ne.Uint16(b[6:])),
		Sequence: ne.Uint32(b[8:]),
		PID:      ne.Uint32(b[12:]),
	}
	if h.Length < nlmsgHeaderLen || uint64(h.Length) > uint64(len(b)) {
		return m, nil, fmt.Errorf("%w: length %d of %d", errShortDatagram, h.Length, len(b))
	}
	m = netlink.Message{Header: h, Data: b[nlmsgHeaderLen:h.Length:h.Length]}
	return m, b[min(align4(int(h.Length)), len(b)):], nil
}

// splitMessages returns all netlink messages of a datagram, see nextMessage.
func splitMessages(b []byte) ([]netlink.Message, error) {
	var msgs []netlink.Message
	for len(b) > 0 {
		m, rest, err := nextMessage(b)
		if err != nil {
			return nil, err
		}
		msgs, b = append(msgs, m), rest
	}
	return msgs, nil
}

// appendGenl appends a generic netlink header.
func appendGenl(b []byte, cmd uint8) []byte {
	return append(b, cmd, familyVersion, 0, 0)
}
