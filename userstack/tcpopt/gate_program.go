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
	tcpAck        = 8
	tcpDataOffset = 12
	tcpFlagsByte  = 13
)

// maxHeaders is how many headers between the first one and that of TCP the program skips. A socket
// can be set to send four: two with options of the destination, and one of each other kind. A route
// can add an IP header with a routing header (seg6).
const maxHeaders = 8

// gateProgram assembles the program that sees each packet which a socket of the cgroup sends.
// It runs before netfilter and fragmentation.
//
//	socket                 | segment                            | does
//	not marked, not gated  | any                                | passes
//	gated                  | SYN, or without payload (ACK, FIN) | passes
//	gated                  | payload that ends within the limit | passes
//	gated                  | any other                          | drops
//	gated, before both     | not TCP, as far as the program     | passes: only the SYN and what
//	ends have announced    | can tell                           | answers it
//	gated, after           | the same                           | drops
//
// The socket decides, and not what a packet looks like: what the program does not understand has
// bytes of the socket in it. That may be a segment that IPsec has encrypted, or one in a tunnel that
// the program does not know. Extension headers, and IP in IP as a route makes it (seg6), are
// skipped. Hosts with IPsec between them, and those behind a route that encapsulates, do not use
// SMC-R.
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
		asm.JNE.Imm(asm.R2, 4, "unknown"),
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
	a.placeLabel("protocol")
	for range maxHeaders {
		a.header("tcp", "unknown")
	}
	a.placeLabel("tcp")
	a.emit(asm.JNE.Imm(regProto, unix.IPPROTO_TCP, "unknown"))
	a.segment()

	a.placeLabel("unknown")
	a.emit(
		asm.LoadMem(asm.R1, regMark, markState, asm.Word),
		asm.JNE.Imm(asm.R1, int32(PeerSMC), labelOut),
	)
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

// header skips one header. It jumps to tcp if there is none to skip, and to unknown for a header
// that it does not know.
func (a egress) header(tcp, unknown string) {
	options, ip4, ip6, done := a.unique("options"), a.unique("ip4"), a.unique("ip6"), a.unique("done")
	a.emit(
		asm.JEq.Imm(regProto, unix.IPPROTO_TCP, tcp),
		asm.JEq.Imm(regProto, unix.IPPROTO_IPV6, ip6),
		asm.JEq.Imm(regProto, unix.IPPROTO_IPIP, ip4),
	)
	for _, kind := range []int32{unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS} {
		a.emit(asm.JEq.Imm(regProto, kind, options))
	}
	a.emit(asm.Ja.Label(unknown))

	a.placeLabel(options)
	a.loadHeader(2)
	a.emit(
		asm.LoadMem(regProto, asm.RFP, gateBuf, asm.Byte),
		asm.LoadMem(asm.R1, asm.RFP, gateBuf+1, asm.Byte),
		asm.LSh.Imm(asm.R1, 3), // in units of 8 bytes, without the first 8
		asm.Add.Imm(asm.R1, 8),
		asm.Add.Reg(regOffset, asm.R1),
		asm.Ja.Label(done),
	)
	a.placeLabel(ip4)
	a.loadHeader(gateBufSize)
	a.emit(
		asm.LoadMem(regProto, asm.RFP, gateBuf+ip4Protocol, asm.Byte),
		asm.LoadMem(asm.R1, asm.RFP, gateBuf, asm.Byte),
		asm.And.Imm(asm.R1, 15),
		asm.LSh.Imm(asm.R1, 2),
		asm.Add.Reg(regOffset, asm.R1),
		asm.Ja.Label(done),
	)
	a.placeLabel(ip6)
	a.loadHeader(gateBufSize)
	a.emit(
		asm.LoadMem(regProto, asm.RFP, gateBuf+ip6NextHeader, asm.Byte),
		asm.Add.Imm(regOffset, ip6HeaderLen),
	)
	a.placeLabel(done)
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
