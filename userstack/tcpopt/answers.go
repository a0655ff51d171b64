// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// Whether both ends of a connection are in one network namespace cannot be told from addresses:
// packets to an address of the host may go to another one (DNAT, IPVS, a policy of routes), and a
// socket with the right addresses may be the end of an older connection. So the program follows
// the SYN-ACK itself:
//
//	callback            | socket          | does
//	WRITE_HDR_OPT       | marked listener | records the SYN-ACK that announces SMC: the network
//	                    |                 | namespace, the addresses, both sequence numbers
//	ACTIVE_ESTABLISHED  | marked client   | finds the SYN-ACK that it has got, with its own
//	                    |                 | addresses the other way round: flagHere
//	PASSIVE_ESTABLISHED | accepted        | finds that the client has found it: flagHere
//
// Whoever rewrites addresses changes what one end sees and not what the other one sees, or leads
// to another network namespace. The sequence numbers are two random numbers of 32 bits, so a
// SYN-ACK of another host is not taken for one of this one.
//
// Each SYN-ACK has an element of the handshakes array when it is recorded, and goes when the
// connection is established. The map has room for as many as that array, so the parts of users
// there are parts of the map, too: what is pushed out belongs to handshakes that are over.

// recordAnswer adds the SYN-ACK that is being written to the answers map.
func (a sockOps) recordAnswer() {
	none := a.unique("no_answer")
	a.answerKey(opsLocal(), opsRemote())
	a.emit(
		asm.LoadMem(asm.R1, regCtx, opsSkbData, asm.DWord),
		asm.LoadMem(asm.R2, regCtx, opsSkbDataEnd, asm.DWord),
		asm.Mov.Reg(asm.R3, asm.R1),
		asm.Add.Imm(asm.R3, tcpDataOffset),
		asm.JGT.Reg(asm.R3, asm.R2, none),
		asm.LoadMem(asm.R2, asm.R1, tcpSeq, asm.Word),
		asm.HostTo(asm.BE, asm.R2, asm.Word),
		asm.LoadMem(asm.R3, asm.R1, tcpAck, asm.Word),
		asm.HostTo(asm.BE, asm.R3, asm.Word),
	)
	a.answerNumbers(asm.R2, asm.R3)
	a.setSlot(slotValue, answerSent)
	// A SYN-ACK that is repeated does not change what the client has recorded.
	a.updateAnswer(unix.BPF_NOEXIST)
	a.placeLabel(none)
}

// answerTaken sets flagHere if a marked listener of this network namespace has sent the SYN-ACK
// of this client, and records that. Otherwise it jumps to label.
func (a sockOps) answerTaken(label string) {
	a.answerKey(opsRemote(), opsLocal())
	a.emit(
		asm.LoadMem(asm.R2, regCtx, opsRcvNxt, asm.Word),
		asm.Sub.Imm32(asm.R2, 1),
		asm.LoadMem(asm.R3, regCtx, opsSndUna, asm.Word),
	)
	a.answerNumbers(asm.R2, asm.R3)
	a.findAnswer()
	a.emit(asm.JEq.Imm(asm.R0, 0, label))
	a.setSlot(slotValue, answerTaken)
	a.updateAnswer(unix.BPF_EXIST)
	a.emit(asm.JNE.Imm(asm.R0, 0, label))
	a.flags(0, flagHere)
}

// answerOver removes the SYN-ACK of this accepted socket. It sets flagHere if the client has found
// the SYN-ACK. Otherwise it jumps to label.
func (a sockOps) answerOver(label string) {
	a.acceptedAnswer()
	a.findAnswer()
	a.emit(
		asm.JEq.Imm(asm.R0, 0, label),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
		asm.StoreMem(asm.RFP, slotValue, asm.R1, asm.DWord),
	)
	a.mapPtr(asm.R1, mapAnswers)
	a.stackPtr(asm.R2, slotAnswer)
	a.emit(
		asm.FnMapDeleteElem.Call(),
		asm.LoadMem(asm.R1, asm.RFP, slotValue, asm.DWord),
		asm.JNE.Imm(asm.R1, answerTaken, label),
	)
	a.flags(0, flagHere)
}

// forgetAnswer removes the SYN-ACK of this accepted socket.
func (a sockOps) forgetAnswer() {
	a.acceptedAnswer()
	a.mapPtr(asm.R1, mapAnswers)
	a.stackPtr(asm.R2, slotAnswer)
	a.emit(asm.FnMapDeleteElem.Call())
}

// acceptedAnswer builds the key of this accepted socket.
func (a sockOps) acceptedAnswer() {
	a.answerKey(opsLocal(), opsRemote())
	a.emit(
		asm.LoadMem(asm.R2, regCtx, opsSndUna, asm.Word),
		asm.Sub.Imm32(asm.R2, 1),
		asm.LoadMem(asm.R3, regCtx, opsRcvNxt, asm.Word),
	)
	a.answerNumbers(asm.R2, asm.R3)
}

func opsLocal() addressFields {
	return addressFields{base: regCtx, family: opsFamily, ip4: opsLocalIP4, ip6: opsLocalIP6, port: opsLocalPort}
}

func opsRemote() addressFields {
	return addressFields{base: regCtx, family: opsFamily, ip4: opsRemoteIP4, ip6: opsRemoteIP6, port: opsRemotePort, remote: true}
}

// answerKey builds the addresses of a key of the answers map.
func (a sockOps) answerKey(server, client addressFields) {
	a.address(slotAnswer, server)
	a.address(slotAnswerClient, client)
}

// answerNumbers completes a key of the answers map.
func (a sockOps) answerNumbers(seq, ack asm.Register) {
	a.emit(
		asm.StoreMem(asm.RFP, slotAnswerSeq, seq, asm.Word),
		asm.StoreMem(asm.RFP, slotAnswerAck, ack, asm.Word),
	)
}

// findAnswer looks up the key. R0 is then the address of the value, or nil.
func (a sockOps) findAnswer() {
	a.mapPtr(asm.R1, mapAnswers)
	a.stackPtr(asm.R2, slotAnswer)
	a.emit(asm.FnMapLookupElem.Call())
}

// updateAnswer writes the value of slotValue. R0 is 0 on success.
func (a sockOps) updateAnswer(how int32) {
	a.mapPtr(asm.R1, mapAnswers)
	a.stackPtr(asm.R2, slotAnswer)
	a.stackPtr(asm.R3, slotValue)
	a.emit(asm.Mov.Imm(asm.R4, how), asm.FnMapUpdateElem.Call())
}
