// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// sockOpsProgram assembles the program that runs at the callbacks of a TCP connection. The
// column "socket" has the mark in the storage of the socket.
//
//	callback            | socket           | does
//	TCP_CONNECT         | connect          | asks for the header option callbacks
//	TCP_LISTEN          | listen           | the same, saves SYNs, registers the address
//	HDR_OPT_LEN, SYN    | connect          | reserves 12 bytes, or 6
//	WRITE_HDR_OPT, SYN  | reserved         | writes the option, and the probe into 12 bytes
//	HDR_OPT_LEN, SYN-ACK| (not accessible) | reserves if the SYN had the option, unless hold.go
//	                    |                  | has something against it
//	WRITE_HDR_OPT, "    | (not accessible) | writes the option
//	ACTIVE_ESTABLISHED  | armed            | reads the SYN-ACK; ends the callbacks, unless the
//	                    |                  | server must be told that options are copied
//	HDR_OPT_LEN, WRITE_ | tell             | writes the probe into the ACK; ends the callbacks
//	HDR_OPT, no SYN     |                  |
//	PASSIVE_ESTABLISHED | its listener's   | recalls the SYN-ACK, records that SMC was
//	                    |                  | announced; ends the callbacks
//	STATE               | registered       | a listener ended: takes its address back
func sockOpsProgram() asm.Instructions {
	a := sockOps{new(assembler)}
	a.emit(
		asm.Mov.Reg(regCtx, asm.R1).WithSymbol("smcr_tcpopt"),
		asm.LoadMem(asm.R1, regCtx, opsOp, asm.Word),
		// Only these two callbacks can occur for each segment.
		asm.JEq.Imm(asm.R1, cbHdrOptLen, "length"),
		asm.JEq.Imm(asm.R1, cbWriteHdrOpt, "write"),
		asm.JEq.Imm(asm.R1, cbTCPConnect, "connect"),
		asm.JEq.Imm(asm.R1, cbActiveEstablished, "active"),
		asm.JEq.Imm(asm.R1, cbPassiveEstablished, "passive"),
		asm.JEq.Imm(asm.R1, cbTCPListen, "listen"),
		asm.JEq.Imm(asm.R1, cbState, "state"),
		asm.Ja.Label(labelOut),
	)
	a.connect()
	a.active()
	a.passive()
	a.listen()
	a.state()
	a.length()
	a.write()
	return a.finish()
}

// sockOps assembles the sock_ops program.
type sockOps struct{ *assembler }

// mark sets regMark to the mark of the socket of the context. Without a mark, the program
// ends.
func (a sockOps) mark() {
	a.emit(
		asm.LoadMem(asm.R2, regCtx, opsSk, asm.DWord),
		asm.JEq.Imm(asm.R2, 0, labelOut),
	)
	a.storage(labelOut)
}

func (a sockOps) opsListenerKey() {
	a.listenerKey(addressFields{base: regCtx, family: opsFamily, ip4: opsLocalIP4, ip6: opsLocalIP6, port: opsLocalPort})
}

func (a sockOps) connect() {
	a.placeLabel("connect")
	a.mark()
	a.unlessBits(regMark, markFlags, flagConnect, labelOut)
	a.flags(flagReserved|flagSent|flagFastOpen|flagProbeRoom|flagProbed|flagTell, flagArmed)
	a.emit(asm.StoreImm(regMark, markState, int64(Unknown), asm.Word))
	a.callbacks(0, cbFlagWriteHdrOpt)
	a.emit(asm.Ja.Label(labelOut))
}

func (a sockOps) active() {
	a.placeLabel("active")
	a.mark()
	a.unlessBits(regMark, markFlags, flagArmed, labelOut)
	a.emit(asm.Mov.Imm(regResult, int32(PeerNoSMC)))
	a.unlessBits(regMark, markFlags, flagSent, "active_done")
	a.unlessReceived(option(), 0, "active_done")
	a.emit(asm.Mov.Imm(regResult, int32(PeerSMC)))
	a.unlessBits(regMark, markFlags, flagProbed, "active_done")
	a.unlessReceived(probe(), 0, "active_done")
	a.emit(asm.Mov.Imm(regResult, int32(PeerCopies)))

	a.placeLabel("active_done")
	a.emit(asm.StoreMem(regMark, markState, regResult, asm.Word))
	// The mark is for one connection. If the socket is disconnected and connected
	// again, the caller must mark it again.
	a.flags(flagConnect|flagArmed|flagReserved|flagProbeRoom, 0)
	a.emit(asm.JEq.Imm(regResult, int32(PeerCopies), "active_tell"))
	a.callbacks(cbFlagWriteHdrOpt, 0)
	a.emit(asm.Ja.Label(labelOut))
	// If the server speaks SMC, it must not wait for a PROPOSAL.
	a.placeLabel("active_tell")
	a.flags(0, flagTell)
	a.emit(asm.Ja.Label(labelOut))
}

func (a sockOps) passive() {
	a.placeLabel("passive")
	a.mark()
	a.ifBits(regMark, markFlags, flagListen, "accepted")
	// A connection without a listener is a simultaneous open: both ends sent a SYN, and
	// neither answered the option of the other.
	a.unlessBits(regMark, markFlags, flagArmed, labelOut)
	a.emit(asm.Mov.Imm(regResult, int32(PeerNoSMC)), asm.Ja.Label("passive_done"))

	a.placeLabel("accepted")
	a.emit(asm.Mov.Imm(regResult, int32(PeerNoSMC)))
	// This segment is the ACK. With Fast Open it is the SYN, and its data belongs to the
	// application. The callbacks end below, so the SYN-ACK of Fast Open, which is sent
	// afterwards, has no option.
	a.ifBits(regCtx, opsTCPFlags, tcpFlagSYN, "passive_done")
	a.unlessBits(regMark, markFlags, flagRegistered, "passive_done")
	// Only what the program has noted itself shows what the SYN-ACK said. The SYN, which the
	// kernel has saved, does not: the SYN-ACK may have gone out before the listener was
	// registered, or without room for the option.
	a.endHandshake("passive_done")
	a.emit(asm.JNE.Imm(asm.R1, synAckSMC, "passive_done"))
	a.emit(asm.Mov.Imm(regResult, int32(PeerSMC)))

	a.placeLabel("passive_done")
	a.emit(asm.JNE.Imm(regResult, int32(PeerSMC), "passive_known"))
	// The client tells that it has found its own options in the SYN-ACK.
	a.unlessReceived(probe(), 0, "passive_known")
	a.emit(asm.Mov.Imm(regResult, int32(PeerNoSMC)))
	a.placeLabel("passive_known")
	a.emit(
		asm.StoreMem(regMark, markState, regResult, asm.Word),
		asm.LoadMem(regResult, regMark, markFlags, asm.Word),
		asm.StoreImm(regMark, markFlags, 0, asm.Word), // those of the listener
		// State callbacks that another program has asked for stay.
		asm.And.Imm(regResult, flagOwnState),
		asm.JEq.Imm(regResult, 0, "passive_foreign"),
	)
	a.callbacks(cbFlagWriteHdrOpt|cbFlagState, 0)
	a.emit(asm.Ja.Label(labelOut))
	a.placeLabel("passive_foreign")
	a.callbacks(cbFlagWriteHdrOpt, 0)
	a.emit(asm.Ja.Label(labelOut))
}

func (a sockOps) listen() {
	a.placeLabel("listen")
	a.mark()
	a.unlessBits(regMark, markFlags, flagListen, labelOut)
	a.ifBits(regMark, markFlags, flagRegistered, labelOut)
	a.register(a.opsListenerKey, labelOut)
	a.ifBits(regMark, markFlags, flagSavesSYN, "listen_saves")
	a.emit(asm.StoreImm(asm.RFP, slotInt, 1, asm.Word), asm.Mov.Reg(asm.R1, regCtx))
	a.setSaveSYN()
	a.placeLabel("listen_saves")
	a.ifBits(regCtx, opsCBFlags, cbFlagState, "listen_flags")
	a.flags(0, flagOwnState)
	a.placeLabel("listen_flags")
	a.callbacks(0, cbFlagWriteHdrOpt|cbFlagState)
	a.emit(asm.Ja.Label(labelOut))
}

func (a sockOps) state() {
	a.placeLabel("state")
	a.emit(
		asm.LoadMem(asm.R1, regCtx, opsArg0, asm.Word),
		asm.JNE.Imm(asm.R1, unix.BPF_TCP_LISTEN, labelOut),
	)
	a.mark()
	a.unlessBits(regMark, markFlags, flagRegistered, labelOut)
	a.unregister(a.opsListenerKey)
	a.emit(asm.Ja.Label(labelOut))
}

func (a sockOps) length() {
	a.placeLabel("length")
	a.ifBits(regCtx, opsTCPFlags, tcpFlagSYN, "length_syn")
	a.mark()
	a.unlessBits(regMark, markFlags, flagTell, labelOut)
	a.reserve(1)
	a.emit(asm.Ja.Label(labelOut))
	a.placeLabel("length_syn")
	a.emit(
		asm.LoadMem(asm.R1, regCtx, opsFullSock, asm.Word),
		asm.JEq.Imm(asm.R1, 0, "length_synack"),
	)
	// This is a SYN.
	a.mark()
	a.unlessBits(regMark, markFlags, flagConnect, labelOut)
	// After a SYN with data, no later SYN of this connection has the option, because the
	// data may have arrived.
	a.ifBits(regMark, markFlags, flagFastOpen, labelOut)
	a.emit(
		asm.LoadMem(asm.R1, regCtx, opsSkbLen, asm.Word),
		asm.JEq.Imm(asm.R1, 0, "length_reserve"),
	)
	a.flags(flagReserved, flagFastOpen)
	a.emit(asm.Ja.Label(labelOut))
	a.placeLabel("length_reserve")
	a.flags(flagReserved|flagProbeRoom, 0)
	a.reserve(2)
	a.emit(asm.JEq.Imm(asm.R0, 0, "length_both"))
	a.reserve(1)
	a.emit(asm.JNE.Imm(asm.R0, 0, labelOut))
	a.flags(0, flagReserved)
	a.emit(asm.Ja.Label(labelOut))
	a.placeLabel("length_both")
	a.flags(0, flagReserved|flagProbeRoom)
	a.emit(asm.Ja.Label(labelOut))

	a.placeLabel("length_synack")
	a.synAckOf()
	a.unlessReceived(option(), loadFromSYN, labelOut)
	// A SYN-ACK that is sent again must be like the first.
	a.findHandshake("length_first")
	a.emit(
		asm.LoadMem(asm.R1, asm.R0, shakeFact, asm.Word),
		asm.JEq.Imm(asm.R1, synAckPlain, labelOut),
		asm.Ja.Label("length_announce"),
	)
	a.placeLabel("length_first")
	a.claimHandshake(labelOut)
	a.unlessAnnounced(labelOut) // later SYN-ACKs are like this one
	a.placeLabel("length_announce")
	a.reserve(1)
	a.emit(asm.JEq.Imm(asm.R0, 0, "length_room"))
	a.recordHandshake(synAckPlain)
	a.emit(asm.Ja.Label(labelOut))
	a.placeLabel("length_room")
	a.recordHandshake(synAckReserved)
	a.emit(asm.Ja.Label(labelOut))
}

// synAckOf ends the program unless this SYN-ACK is from a marked listener.
func (a sockOps) synAckOf() {
	a.emit(
		asm.LoadMem(asm.R1, regCtx, opsArg0, asm.Word),
		// With a SYN cookie, the kernel does not keep the SYN: its option could not be
		// known later.
		asm.JEq.Imm(asm.R1, synAckCookie, labelOut),
	)
	a.opsListenerKey()
	a.unlessListener(labelOut)
}

func (a sockOps) write() {
	a.placeLabel("write")
	a.ifBits(regCtx, opsTCPFlags, tcpFlagSYN, "write_syn")
	a.mark()
	a.unlessBits(regMark, markFlags, flagTell, labelOut)
	a.store(probe(), "write_told")
	a.placeLabel("write_told")
	a.flags(flagTell, 0)
	a.callbacks(cbFlagWriteHdrOpt, 0)
	a.emit(asm.Ja.Label(labelOut))
	a.placeLabel("write_syn")
	a.emit(
		asm.LoadMem(asm.R1, regCtx, opsFullSock, asm.Word),
		asm.JEq.Imm(asm.R1, 0, "write_synack"),
	)
	// This is a SYN. If the flag is not set, another program has reserved the room.
	a.mark()
	a.unlessBits(regMark, markFlags, flagReserved, labelOut)
	a.store(option(), "write_sent")
	a.emit(asm.Ja.Label(labelOut))
	a.placeLabel("write_sent")
	a.flags(0, flagSent)
	a.unlessBits(regMark, markFlags, flagProbeRoom, labelOut)
	a.store(probe(), "write_probed")
	a.emit(asm.Ja.Label(labelOut))
	a.placeLabel("write_probed")
	a.flags(0, flagProbed)
	a.emit(asm.Ja.Label(labelOut))

	a.placeLabel("write_synack")
	a.synAckOf()
	a.findHandshake(labelOut)
	a.emit(
		asm.LoadMem(asm.R1, asm.R0, shakeFact, asm.Word),
		asm.JNE.Imm(asm.R1, synAckReserved, labelOut),
	)
	a.store(option(), "write_announced")
	a.recordHandshake(synAckPlain)
	a.emit(asm.Ja.Label(labelOut))
	a.placeLabel("write_announced")
	a.recordHandshake(synAckSMC)
	a.emit(asm.Ja.Label(labelOut))
}
