// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding"
	"encoding/binary"
	"fmt"
)

// CDCLen is the length of a CDC message in bytes.
const CDCLen = 44

// CDCType is the first byte of a CDC message.
const CDCType = 0xFE

// Cursor is a position in an RMB element. RFC 7609 counts from 4, the first byte behind
// the eyecatcher. Linux has no eyecatcher and counts from 0.
type Cursor struct {
	// Wrap is incremented when Count wraps. It wraps to 0.
	Wrap uint16
	// Count is the offset into the RMB element in bytes.
	Count uint32
}

// ProducerFlags are the flags about data written, byte 24 of a CDC message.
type ProducerFlags uint8

// The producer flags; the letters are those of RFC 7609, figure 41.
const (
	ProdWriterBlocked  ProducerFlags = 0x80 // B: tell when buffer space is free
	ProdUrgentPending  ProducerFlags = 0x40 // P: urgent data is waiting to be written
	ProdUrgentPresent  ProducerFlags = 0x20 // U: the cursor is one byte beyond urgent data
	ProdCursorRequest  ProducerFlags = 0x10 // R: send a consumer cursor update now
	ProdFailoverVerify ProducerFlags = 0x08 // F: failover data validation; only Seq and Token count

	prodFlagsMask = ProdWriterBlocked | ProdUrgentPending | ProdUrgentPresent | ProdCursorRequest | ProdFailoverVerify
)

// StateFlags are the flags about the connection, byte 25 of a CDC message.
type StateFlags uint8

// The connection state flags; the letters are those of RFC 7609, figure 41.
const (
	ConnSendingDone   StateFlags = 0x80 // D: no more data will be written
	ConnClosed        StateFlags = 0x40 // C: no more messages will be sent
	ConnAbnormalClose StateFlags = 0x20 // A: reset

	connStateMask = ConnSendingDone | ConnClosed | ConnAbnormalClose
)

// CDC is the message that announces data of a connection: how far the sender has written
// into the receiver's RMB element, and how far it has read its own (RFC 7609, appendix
// A.4, figure 41).
//
//	0   type, 0xFE
//	1   length, 44
//	2   sequence number (2)
//	4   alert token (4)
//	8   reserved (2), producer cursor: wrap (2), count (4)
//	16  reserved (2), consumer cursor: wrap (2), count (4)
//	24  producer flags
//	25  connection state flags
//	26  reserved (18)
type CDC struct {
	// Seq starts at 1 and wraps to 0. A failover validation message repeats
	// the number of the last message that was acknowledged.
	Seq uint16
	// Token is the alert token of the connection that the receiver has chosen.
	Token uint32
	// Prod is where the sender will write next in the receiver's element.
	Prod Cursor
	// Cons is what the sender will read next in its own element.
	Cons  Cursor
	Flags ProducerFlags
	State StateFlags
}

var _ encoding.BinaryAppender = CDC{}

// AppendBinary appends the CDCLen bytes of the message to b. It returns
// ErrRange if a reserved flag is set.
func (m CDC) AppendBinary(b []byte) ([]byte, error) {
	if m.Flags&^prodFlagsMask != 0 {
		return b, rangeErr("producer flags", m.Flags)
	}
	if m.State&^connStateMask != 0 {
		return b, rangeErr("connection state flags", m.State)
	}
	b, p := extend(b, CDCLen)
	p[0], p[1] = CDCType, CDCLen
	binary.BigEndian.PutUint16(p[2:], m.Seq)
	binary.BigEndian.PutUint32(p[4:], m.Token)
	putCursor(p[8:], m.Prod)
	putCursor(p[16:], m.Cons)
	p[24], p[25] = byte(m.Flags), byte(m.State)
	return b, nil
}

// ParseCDC decodes a CDC message. It ignores reserved flags. It returns ErrShort,
// ErrType or ErrLength if b is not a CDC message.
func ParseCDC(b []byte) (CDC, error) {
	if len(b) < CDCLen {
		return CDC{}, ErrShort
	}
	if b[0] != CDCType {
		return CDC{}, fmt.Errorf("%w: 0x%02x, want CDC", ErrType, b[0])
	}
	if len(b) != CDCLen || b[1] != CDCLen {
		return CDC{}, fmt.Errorf("%w: CDC says %d bytes, has %d", ErrLength, b[1], len(b))
	}
	return CDC{
		Seq:   binary.BigEndian.Uint16(b[2:]),
		Token: binary.BigEndian.Uint32(b[4:]),
		Prod:  getCursor(b[8:]),
		Cons:  getCursor(b[16:]),
		Flags: ProducerFlags(b[24]) & prodFlagsMask,
		State: StateFlags(b[25]) & connStateMask,
	}, nil
}

func putCursor(b []byte, c Cursor) {
	binary.BigEndian.PutUint16(b[2:], c.Wrap)
	binary.BigEndian.PutUint32(b[4:], c.Count)
}

func getCursor(b []byte) Cursor {
	return Cursor{Wrap: binary.BigEndian.Uint16(b[2:]), Count: binary.BigEndian.Uint32(b[4:])}
}
