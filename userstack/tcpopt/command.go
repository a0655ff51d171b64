// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// For a socket that listens already, the SOCK_OPS program gets no callback at which it could
// ask for the header option callbacks. But a setsockopt program runs for any socket, and may
// ask for them since Linux 6.12. It is attached only while this package makes one
// setsockopt(2), with a level that no protocol has. Calls of other processes in this time
// pass unchanged.
const (
	commandLevel  = 0x534d4352
	commandListen = 1
)

// registerListening runs the command program on a listening socket whose mark has
// flagListen. The caller holds listenMu.
func (p *Program) registerListening(fd int) error {
	if err := p.objs.commandErr; errors.Is(err, ErrUnsupportedKernel) {
		return fmt.Errorf("%w: %w", ErrListening, err)
	} else if err != nil {
		return err
	}
	l, err := link.AttachRawLink(link.RawLinkOptions{
		Target:  p.cgroup.fd(),
		Program: p.objs.command,
		Attach:  ebpf.AttachCGroupSetsockopt,
	})
	if err != nil {
		return bpfError("attach the setsockopt program", err)
	}
	err = unix.SetsockoptInt(fd, commandLevel, commandListen, 0)
	if cerr := l.Close(); cerr != nil {
		return fmt.Errorf("tcpopt: detach the setsockopt program: %w", cerr)
	}
	switch {
	case errors.Is(err, unix.EPERM):
		return ErrListening // the result of the program
	case err != nil:
		return fmt.Errorf("tcpopt: the socket is outside of the cgroup tree %s: %w", p.cgroup.name, err)
	}
	return nil
}

// commandProgram assembles the setsockopt program. It works only on listening sockets
// that have a mark of this package: only the owner of the map can set marks.
//
//	option | mark   | does
//	listen | listen | registers the address, asks for the callbacks, saves SYNs
func commandProgram() asm.Instructions {
	a := sockOption{new(assembler)}
	a.emit(
		asm.Mov.Reg(regCtx, asm.R1).WithSymbol("smcr_command"),
		asm.LoadMem(asm.R1, regCtx, soLevel, asm.Word),
		asm.JNE.Imm(asm.R1, commandLevel, "pass"),
		asm.LoadMem(regSock, regCtx, soSk, asm.DWord),
		asm.Mov.Reg(asm.R2, regSock),
	)
	a.storage("pass")
	a.emit(
		asm.LoadMem(asm.R1, regSock, sockState, asm.Word),
		asm.JNE.Imm(asm.R1, unix.BPF_TCP_LISTEN, "pass"),
		asm.LoadMem(asm.R1, regCtx, soOptname, asm.Word),
		asm.JNE.Imm(asm.R1, commandListen, "pass"),
	)
	a.unlessBits(regMark, markFlags, flagListen, "pass")
	a.ifBits(regMark, markFlags, flagRegistered, "done")
	a.readCallbacks("refuse")
	a.register(a.sockListenerKey, "refuse")
	// SYNs must be saved before the first SYN-ACK with the option.
	a.ifBits(regMark, markFlags, flagSavesSYN, "listen_saves")
	a.emit(asm.StoreImm(asm.RFP, slotInt, 1, asm.Word), asm.Mov.Reg(asm.R1, regSock))
	a.setSaveSYN()
	a.placeLabel("listen_saves")
	a.emit(
		asm.Mov.Reg(asm.R1, regResult),
		asm.And.Imm(asm.R1, cbFlagState),
		asm.JNE.Imm(asm.R1, 0, "listen_flags"),
	)
	a.flags(0, flagOwnState)
	a.placeLabel("listen_flags")
	a.emit(asm.Or.Imm(regResult, cbFlagWriteHdrOpt|cbFlagState))
	a.writeCallbacks()
	a.emit(asm.JEq.Imm(asm.R0, 0, "done"))
	// Only a kernel that can read the flags but not set them executes this.
	a.unregister(a.sockListenerKey)
	a.emit(asm.Ja.Label("refuse"))

	// Older verifiers require that the context is written from a register.
	a.placeLabel("done")
	a.emit(asm.Mov.Imm(asm.R1, -1), asm.Ja.Label("answer")) // the protocol does not handle the call
	a.placeLabel("pass")
	a.emit(asm.Mov.Imm(asm.R1, 0)) // the protocol handles the value of the caller
	a.placeLabel("answer")
	a.emit(
		asm.StoreMem(regCtx, soOptlen, asm.R1, asm.Word),
		asm.Ja.Label(labelOut),
	)
	a.placeLabel("refuse")
	a.emit(asm.Mov.Imm(asm.R0, 0), asm.Return())
	return a.finish()
}

// sockOption assembles the setsockopt program.
type sockOption struct{ *assembler }

func (a sockOption) sockListenerKey() {
	a.listenerKey(addressFields{base: regSock, family: sockFamily, ip4: sockLocalIP4, ip6: sockLocalIP6, port: sockLocalPort})
}

// readCallbacks loads the callback flags of the socket into regResult, or jumps to label
// after an error.
func (a sockOption) readCallbacks(label string) {
	a.emit(
		asm.StoreImm(asm.RFP, slotInt, 0, asm.Word),
		asm.Mov.Reg(asm.R1, regSock),
		asm.Mov.Imm(asm.R2, unix.IPPROTO_TCP),
		asm.Mov.Imm(asm.R3, tcpBPFSockOpsCBFlags),
	)
	a.stackPtr(asm.R4, slotInt)
	a.emit(
		asm.Mov.Imm(asm.R5, 4),
		asm.FnGetsockopt.Call(),
		asm.JNE.Imm(asm.R0, 0, label),
		asm.LoadMem(regResult, asm.RFP, slotInt, asm.Word),
	)
}

// writeCallbacks sets the callback flags of the socket to regResult; R0 is 0 on
// success.
func (a sockOption) writeCallbacks() {
	a.emit(
		asm.StoreMem(asm.RFP, slotInt, regResult, asm.Word),
		asm.Mov.Reg(asm.R1, regSock),
		asm.Mov.Imm(asm.R2, unix.IPPROTO_TCP),
		asm.Mov.Imm(asm.R3, tcpBPFSockOpsCBFlags),
	)
	a.stackPtr(asm.R4, slotInt)
	a.emit(
		asm.Mov.Imm(asm.R5, 4),
		asm.FnSetsockopt.Call(),
	)
}
