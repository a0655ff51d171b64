// SPDX-License-Identifier: Apache-2.0

package header

import (
	"encoding/binary"
	"fmt"
)

// Opcode is the BTH operation code: the transport service in bits 5 to 7,
// the operation in bits 0 to 4. The constants below are those of the
// reliable connection service (service 0).
type Opcode uint8

// Operation codes of the reliable connection service.
const (
	SendFirst     Opcode = 0x00 // first packet of a SEND
	SendMiddle    Opcode = 0x01 // packet in the middle of a SEND
	SendLast      Opcode = 0x02 // last packet of a SEND
	SendLastImm   Opcode = 0x03 // last packet of a SEND with immediate data
	SendOnly      Opcode = 0x04 // only packet of a SEND
	SendOnlyImm   Opcode = 0x05 // only packet of a SEND with immediate data
	WriteFirst    Opcode = 0x06 // first packet of an RDMA WRITE
	WriteMiddle   Opcode = 0x07 // packet in the middle of an RDMA WRITE
	WriteLast     Opcode = 0x08 // last packet of an RDMA WRITE
	WriteLastImm  Opcode = 0x09 // last packet of an RDMA WRITE with immediate data
	WriteOnly     Opcode = 0x0a // only packet of an RDMA WRITE
	WriteOnlyImm  Opcode = 0x0b // only packet of an RDMA WRITE with immediate data
	ReadRequest   Opcode = 0x0c // request of an RDMA READ
	ReadRespFirst Opcode = 0x0d // first packet of the response to an RDMA READ
	ReadRespMid   Opcode = 0x0e // packet in the middle of the response
	ReadRespLast  Opcode = 0x0f // last packet of the response
	ReadRespOnly  Opcode = 0x10 // only packet of the response
	Acknowledge   Opcode = 0x11 // ACK or NAK, see AETH
)

// Lengths of headers in bytes.
const (
	BTHLen   = 12 // base transport header
	RETHLen  = 16 // RDMA extended transport header
	AETHLen  = 4  // ACK extended transport header
	ImmDtLen = 4  // immediate data
	ICRCLen  = 4  // invariant CRC, behind the payload

	// MaxTransportLen is the length of the longest transport headers that
	// ParseTransport knows.
	MaxTransportLen = BTHLen + RETHLen + ImmDtLen
)

// DefaultPKey is the partition key of RoCE ports: the default partition,
// full membership.
const DefaultPKey = 0xffff

// PSNMask covers the 24 bits of a packet sequence number, a queue pair
// number or a message sequence number.
const PSNMask = 1<<24 - 1

// opInfo says which extended headers follow the BTH.
type opInfo struct {
	name              string
	reth, aeth, immDt bool
	payload           bool // may carry payload
	known             bool
}

var ops = [...]opInfo{
	SendFirst:     {name: "SEND First", payload: true, known: true},
	SendMiddle:    {name: "SEND Middle", payload: true, known: true},
	SendLast:      {name: "SEND Last", payload: true, known: true},
	SendLastImm:   {name: "SEND Last with Immediate", immDt: true, payload: true, known: true},
	SendOnly:      {name: "SEND Only", payload: true, known: true},
	SendOnlyImm:   {name: "SEND Only with Immediate", immDt: true, payload: true, known: true},
	WriteFirst:    {name: "RDMA WRITE First", reth: true, payload: true, known: true},
	WriteMiddle:   {name: "RDMA WRITE Middle", payload: true, known: true},
	WriteLast:     {name: "RDMA WRITE Last", payload: true, known: true},
	WriteLastImm:  {name: "RDMA WRITE Last with Immediate", immDt: true, payload: true, known: true},
	WriteOnly:     {name: "RDMA WRITE Only", reth: true, payload: true, known: true},
	WriteOnlyImm:  {name: "RDMA WRITE Only with Immediate", reth: true, immDt: true, payload: true, known: true},
	ReadRequest:   {name: "RDMA READ Request", reth: true, known: true},
	ReadRespFirst: {name: "RDMA READ response First", aeth: true, payload: true, known: true},
	ReadRespMid:   {name: "RDMA READ response Middle", payload: true, known: true},
	ReadRespLast:  {name: "RDMA READ response Last", aeth: true, payload: true, known: true},
	ReadRespOnly:  {name: "RDMA READ response Only", aeth: true, payload: true, known: true},
	Acknowledge:   {name: "Acknowledge", aeth: true, known: true},
}

// Known reports whether o is one of the constants above.
func (o Opcode) Known() bool { return int(o) < len(ops) && ops[o].known }

// String names o as the specification's table of opcodes does.
func (o Opcode) String() string {
	if o.Known() {
		return ops[o].name
	}
	return fmt.Sprintf("opcode 0x%02x", uint8(o))
}

// HeaderLen returns the bytes of the BTH and the extended headers of a
// packet with opcode o, or 0 if o is not known.
func (o Opcode) HeaderLen() int {
	if !o.Known() {
		return 0
	}
	n := BTHLen
	if ops[o].reth {
		n += RETHLen
	}
	if ops[o].aeth {
		n += AETHLen
	}
	if ops[o].immDt {
		n += ImmDtLen
	}
	return n
}

// HasRETH reports whether a RETH follows the BTH in a packet with opcode o.
func (o Opcode) HasRETH() bool { return o.Known() && ops[o].reth }

// HasAETH reports whether an AETH follows the BTH in a packet with opcode o.
func (o Opcode) HasAETH() bool { return o.Known() && ops[o].aeth }

// HasImmDt reports whether an ImmDt follows the BTH, or the RETH if there is
// one, in a packet with opcode o.
func (o Opcode) HasImmDt() bool { return o.Known() && ops[o].immDt }

// HasPayload reports whether a packet with opcode o may carry payload.
func (o Opcode) HasPayload() bool { return o.Known() && ops[o].payload }

// IsResponse reports whether a responder sends o, so that it is for the
// requester of the peer.
func (o Opcode) IsResponse() bool { return o >= ReadRespFirst && o <= Acknowledge }

// BTH is a base transport header: 12 bytes (InfiniBand Architecture
// Specification, section 9.2).
//
//	 0               1               2               3
//	| OpCode        |S|M|Pad| TVer  | Partition Key                 |
//	|F|B| reserved  | Destination QP                                |
//	|A| reserved    | Packet Sequence Number                        |
type BTH []byte

// BTHFields are the fields of a BTH to encode. TVer is always 0. The bits F and
// B are also 0: RoCE does not use them (annex A16, CA16-16).
type BTHFields struct {
	Opcode    Opcode
	Solicited bool
	MigReq    bool
	PadCount  uint8 // 0..3
	PKey      uint16
	DestQP    uint32 // 24 bits
	AckReq    bool
	PSN       uint32 // 24 bits
}

// Encode writes f into the 12 bytes of b.
func (b BTH) Encode(f *BTHFields) {
	_ = b[BTHLen-1]
	b[0] = byte(f.Opcode)
	b[1] = f.PadCount & 3 << 4
	if f.Solicited {
		b[1] |= 0x80
	}
	if f.MigReq {
		b[1] |= 0x40
	}
	binary.BigEndian.PutUint16(b[2:], f.PKey)
	binary.BigEndian.PutUint32(b[4:], f.DestQP&PSNMask)
	binary.BigEndian.PutUint32(b[8:], f.PSN&PSNMask)
	if f.AckReq {
		b[8] = 0x80
	}
}

// Fields returns all fields of b.
func (b BTH) Fields() BTHFields {
	return BTHFields{
		Opcode: b.Opcode(), Solicited: b.Solicited(), MigReq: b.MigReq(), PadCount: b.PadCount(),
		PKey: b.PKey(), DestQP: b.DestQP(), AckReq: b.AckReq(), PSN: b.PSN(),
	}
}

// Opcode returns the operation code.
func (b BTH) Opcode() Opcode { return Opcode(b[0]) }

// Solicited returns the solicited event bit.
func (b BTH) Solicited() bool { return b[1]&0x80 != 0 }

// MigReq returns the path migration state bit.
func (b BTH) MigReq() bool { return b[1]&0x40 != 0 }

// PadCount returns the pad bytes that follow the payload, 0 to 3.
func (b BTH) PadCount() uint8 { return b[1] >> 4 & 3 }

// TVer returns the transport header version, 4 bits.
func (b BTH) TVer() uint8 { return b[1] & 0x0f }

// PKey returns the partition key.
func (b BTH) PKey() uint16 { return binary.BigEndian.Uint16(b[2:]) }

// DestQP returns the destination queue pair number, 24 bits.
func (b BTH) DestQP() uint32 { return binary.BigEndian.Uint32(b[4:]) & PSNMask }

// AckReq returns the acknowledge request bit.
func (b BTH) AckReq() bool { return b[8]&0x80 != 0 }

// PSN returns the packet sequence number, 24 bits.
func (b BTH) PSN() uint32 { return binary.BigEndian.Uint32(b[8:]) & PSNMask }

// SetOpcode sets the operation code.
func (b BTH) SetOpcode(o Opcode) { b[0] = byte(o) }

// SetPadCount sets the number of pad bytes, 0 to 3.
func (b BTH) SetPadCount(n uint8) { b[1] = b[1]&^0x30 | n&3<<4 }

// SetPKey sets the partition key.
func (b BTH) SetPKey(k uint16) { binary.BigEndian.PutUint16(b[2:], k) }

// SetDestQP sets the destination queue pair number, 24 bits.
func (b BTH) SetDestQP(qpn uint32) {
	b[5], b[6], b[7] = byte(qpn>>16), byte(qpn>>8), byte(qpn)
}

// SetAckReq sets the acknowledge request bit.
func (b BTH) SetAckReq(a bool) {
	b[8] &^= 0x80
	if a {
		b[8] |= 0x80
	}
}

// SetPSN sets the packet sequence number, 24 bits.
func (b BTH) SetPSN(psn uint32) {
	b[9], b[10], b[11] = byte(psn>>16), byte(psn>>8), byte(psn)
}
