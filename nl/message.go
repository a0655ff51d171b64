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

// appendMessage appends a netlink message with its payload, padded to a multiple
// of four bytes. The length in the header excludes the padding.
func appendMessage(b []byte, h netlink.Header, data []byte) []byte {
	ne := binary.NativeEndian
	b = ne.AppendUint32(b, uint32(nlmsgHeaderLen+len(data)))
	b = ne.AppendUint16(b, uint16(h.Type))
	b = ne.AppendUint16(b, uint16(h.Flags))
	b = ne.AppendUint32(b, h.Sequence)
	b = ne.AppendUint32(b, h.PID)
	b = append(b, data...)
	return append(b, make([]byte, align4(len(data))-len(data))...)
}

// splitMessages returns the netlink messages of a datagram. Their payloads are
// part of b. The padding of the last message may be missing.
func splitMessages(b []byte) ([]netlink.Message, error) {
	var msgs []netlink.Message
	ne := binary.NativeEndian
	for len(b) > 0 {
		if len(b) < nlmsgHeaderLen {
			return nil, errShortDatagram
		}
		h := netlink.Header{
			Length:   ne.Uint32(b),
			Type:     netlink.HeaderType(ne.Uint16(b[4:])),
			Flags:    netlink.HeaderFlags(ne.Uint16(b[6:])),
			Sequence: ne.Uint32(b[8:]),
			PID:      ne.Uint32(b[12:]),
		}
		if h.Length < nlmsgHeaderLen || uint64(h.Length) > uint64(len(b)) {
			return nil, fmt.Errorf("%w: length %d of %d", errShortDatagram, h.Length, len(b))
		}
		msgs = append(msgs, netlink.Message{Header: h, Data: b[nlmsgHeaderLen:h.Length:h.Length]})
		b = b[min(align4(int(h.Length)), len(b)):]
	}
	return msgs, nil
}

// appendGenl appends a generic netlink header.
func appendGenl(b []byte, cmd uint8) []byte {
	return append(b, cmd, familyVersion, 0, 0)
}
