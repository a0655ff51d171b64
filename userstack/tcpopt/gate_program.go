// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// Stack slots of the gate program, as offsets in bytes from the frame pointer.
const (
	gateBuf     = -24 // 24 bytes for a part of a header
	gateBufSize = 20
)

// Registers of the gate program besides regCtx and regMark: the offset of the TCP header
// from the IP header in bytes, and the protocol of the header at this offset.
const (
	regOffset = asm.R8
	regProto  = asm.R9
)

// Offsets in bytes in the headers.
const (
	ip4Protocol   = 9
	ip6NextHeader = 6
	ip6HeaderLen  = 40
	tcpSeq        = 4
	tcpDataOffset = 12
	tcpFlagsByte  = 13
)

// maxExtensions is how many extension headers a socket can be set to send: two with
// options of the destination, and one of each other kind.
const maxExtensions = 4

// gateProgram assembles the program that sees each packet which a socket of the cgroup sends.
// It runs before netfilter and fragmentation.
//
//	socket                 | segment                            | does
//	not marked, not gated  | any                                | passes
//	gated                  | SYN, or without payload (ACK, FIN) | passes
//	gated                  | payload that ends within the limit | passes
//	gated                  | any other                          | drops
//
// A packet that is not TCP passes. It belongs to a tunnel, and has a segment inside that the
// program has seen already, or it is a segment that IPsec has encrypted. Hosts with IPsec
// between them decline SMC-R.
//
// TCP regards a dropped segment as not sent, and tries again later.
func gateProgram() asm.Instructions {
	a := egress{new(assembler)}
	a.emit(
		asm.Mov.Reg(regCtx, asm.R1).WithSymbol("smcr_gate"),
		asm.LoadMem(asm.R2, regCtx, skbSk, asm.DWord),
		asm.JEq.Imm(asm.R2, 0, labelOut),
	)
	a.storage(labelOut)
	a.unlessBits(regMark, markFlags, flagGated, labelOut)

	a.emit(asm.Mov.Imm(regOffset, 0))
	a.loadHeader(gateBufSize)
	a.emit(
		asm.LoadMem(asm.R1, asm.RFP, gateBuf, asm.Byte),
		asm.Mov.Reg(asm.R2, asm.R1),
		asm.RSh.Imm(asm.R2, 4),
		asm.JEq.Imm(asm.R2, 6, "ip6"),
		asm.And.Imm(asm.R1, 15),
		asm.LSh.Imm(asm.R1, 2),
		asm.Mov.Reg(regOffset, asm.R1),
		asm.LoadMem(regProto, asm.RFP, gateBuf+ip4Protocol, asm.Byte),
		asm.Ja.Label("protocol"),
	)
	a.placeLabel("ip6")
	a.emit(
		asm.LoadMem(regProto, asm.RFP, gateBuf+ip6NextHeader, asm.Byte),
		asm.Mov.Imm(regOffset, ip6HeaderLen),
	)
	for range maxExtensions {
		a.extension("protocol")
	}
	a.placeLabel("protocol")
	a.emit(asm.JNE.Imm(regProto, unix.IPPROTO_TCP, labelOut))
	a.segment()

	a.placeLabel("drop")
	a.emit(asm.Mov.Imm(asm.R0, 0), asm.Return())
	return a.finish()
}

// egress assembles the gate program.
type egress struct{ *assembler }

// loadHeader copies n bytes of the packet at regOffset to the buffer.
func (a egress) loadHeader(n int32) {
	a.emit(
		asm.Mov.Reg(asm.R1, regCtx),
		asm.Mov.Reg(asm.R2, regOffset),
	)
	a.stackPtr(asm.R3, gateBuf)
	a.emit(
		asm.Mov.Imm(asm.R4, n),
		asm.FnSkbLoadBytes.Call(),
		asm.JNE.Imm(asm.R0, 0, "drop"),
	)
}

// extension skips one extension header of IPv6, or jumps to label if there is none.
func (a egress) extension(label string) {
	is := a.unique("extension")
	for _, kind := range []int32{unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS} {
		a.emit(asm.JEq.Imm(regProto, kind, is))
	}
	a.emit(asm.Ja.Label(label))
	a.placeLabel(is)
	a.loadHeader(2)
	a.emit(
		asm.LoadMem(regProto, asm.RFP, gateBuf, asm.Byte),
		asm.LoadMem(asm.R1, asm.RFP, gateBuf+1, asm.Byte),
		asm.LSh.Imm(asm.R1, 3), // in units of 8 bytes, without the first 8
		asm.Add.Imm(asm.R1, 8),
		asm.Add.Reg(regOffset, asm.R1),
	)
}

// segment decides on the TCP segment at regOffset.
func (a egress) segment() {
	a.loadHeader(gateBufSize)
	a.emit(
		asm.LoadMem(asm.R1, asm.RFP, gateBuf+tcpFlagsByte, asm.Byte),
		asm.And.Imm(asm.R1, tcpFlagSYN),
		// Data of a SYN is Fast Open, so there is no option and no gate.
		asm.JNE.Imm(asm.R1, 0, labelOut),
		// Set R2 to the length of the payload.
		asm.LoadMem(asm.R1, asm.RFP, gateBuf+tcpDataOffset, asm.Byte),
		asm.RSh.Imm(asm.R1, 4),
		asm.LSh.Imm(asm.R1, 2),
		asm.LoadMem(asm.R2, regCtx, skbLen, asm.Word),
		asm.Sub.Reg(asm.R2, regOffset),
		asm.Sub.Reg(asm.R2, asm.R1),
		asm.JSLE.Imm(asm.R2, 0, labelOut),
		// Set R1 to the position of the payload in the stream. Both are below 2^32.
		asm.LoadMem(asm.R1, asm.RFP, gateBuf+tcpSeq, asm.Word),
		asm.HostTo(asm.BE, asm.R1, asm.Word),
		asm.LoadMem(asm.R3, regMark, markBase, asm.Word),
		asm.Sub.Reg32(asm.R1, asm.R3),
		asm.Add.Reg(asm.R1, asm.R2),
		asm.LoadMem(asm.R3, regMark, markLimit, asm.Word),
		asm.JLE.Reg(asm.R1, asm.R3, labelOut),
	)
}
