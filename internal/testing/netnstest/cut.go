// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
)

// Cut makes both ends of the i-th link drop every packet that they receive. Carrier and
// addresses stay: for each host, the other one does not answer any more, as if it had
// lost its power behind a switch. Uncut ends this state. A capture on the sender still
// has the packets that are sent.
func (p *Pair) Cut(i int) error {
	return errors.Join(p.A.setDrop(i, true), p.B.setDrop(i, true))
}

// Uncut undoes Cut.
func (p *Pair) Uncut(i int) error {
	return errors.Join(p.A.setDrop(i, false), p.B.setDrop(i, false))
}

// setDrop makes the i-th link drop all packets that it receives, or none.
func (h *Host) setDrop(i int, drop bool) error {
	if drop {
		return h.SetLoss(i, 1)
	}
	return h.SetLoss(i, 0)
}

// Actions of an XDP program (linux/bpf.h).
const (
	xdpDrop = 1
	xdpPass = 2
)

// SetLoss makes the i-th link of the host drop a share of the packets that it receives, at
// random: 0 is none, 1 is all. It attaches an XDP program, which runs before packet sockets
// and protocols get a packet, so nothing on the host receives what it drops. What a stack gives to the programs of the
// host there did not come by the link, and passes: its destination is another address.
func (h *Host) SetLoss(i int, share float64) error {
	fd := -1 // -1 detaches the program
	if share > 0 {
		mac := h.Links[i].MAC
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.XDP,
			Instructions: asm.Instructions{
				asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // data
				asm.LoadMem(asm.R3, asm.R1, 4, asm.Word), // data_end
				asm.Mov.Reg(asm.R4, asm.R2),
				asm.Add.Imm(asm.R4, 6),
				asm.JGT.Reg(asm.R4, asm.R3, "pass"),
				asm.LoadMem(asm.R5, asm.R2, 0, asm.Byte),
				asm.And.Imm(asm.R5, 1), // multicast
				asm.JNE.Imm(asm.R5, 0, "from the link"),
				asm.LoadMem(asm.R5, asm.R2, 0, asm.Word),
				asm.JNE.Imm32(asm.R5, int32(binary.NativeEndian.Uint32(mac)), "pass"),
				asm.LoadMem(asm.R5, asm.R2, 4, asm.Half),
				asm.JNE.Imm(asm.R5, int32(binary.NativeEndian.Uint16(mac[4:])), "pass"),
				asm.FnGetPrandomU32.Call().WithSymbol("from the link"),
				asm.RSh.Imm(asm.R0, 1), // 31 bits: immediate values have a sign
				asm.Mov.Reg(asm.R1, asm.R0),
				asm.Mov.Imm(asm.R0, xdpDrop),
				asm.JLE.Imm(asm.R1, int32(min(share, 1)*(1<<31-1)), "end"),
				asm.Mov.Imm(asm.R0, xdpPass).WithSymbol("pass"),
				asm.Return().WithSymbol("end"),
			},
			License: "Apache-2.0",
		})
		if err != nil {
			return fmt.Errorf("netnstest: load the dropping program: %w", err)
		}
		defer prog.Close() // the device keeps the program
		fd = prog.FD()
	}
	return h.attachXDP(i, fd)
}

// BlockRoCE makes the i-th link of the host drop the RoCE packets that it receives, of both
// versions, whose frames are longer than over bytes. 0 means all of them, and less than 0
// ends this. Everything else passes: it is what a firewall without UDP port 4791 does, or a
// path with a smaller MTU. It takes the place of SetLoss.
func (h *Host) BlockRoCE(i int, over int) error {
	fd := -1
	if over >= 0 {
		const port = 4791
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.XDP,
			Instructions: asm.Instructions{
				asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // data
				asm.LoadMem(asm.R3, asm.R1, 4, asm.Word), // data_end
				asm.Mov.Reg(asm.R6, asm.R3),
				asm.Sub.Reg(asm.R6, asm.R2),
				asm.JLE.Imm(asm.R6, int32(over), "pass"),
				asm.Mov.Reg(asm.R4, asm.R2),
				asm.Add.Imm(asm.R4, 14),
				asm.JGT.Reg(asm.R4, asm.R3, "pass"),
				asm.LoadMem(asm.R5, asm.R2, 12, asm.Half),
				asm.HostTo(asm.BE, asm.R5, asm.Half),
				asm.JEq.Imm(asm.R5, 0x8915, "drop"),
				asm.JEq.Imm(asm.R5, 0x0800, "ipv4"),
				asm.JNE.Imm(asm.R5, 0x86dd, "pass"),

				asm.Mov.Reg(asm.R4, asm.R2),
				asm.Add.Imm(asm.R4, 14+40+4),
				asm.JGT.Reg(asm.R4, asm.R3, "pass"),
				asm.LoadMem(asm.R5, asm.R2, 14+6, asm.Byte),
				asm.JNE.Imm(asm.R5, 17, "pass"),
				asm.LoadMem(asm.R5, asm.R2, 14+40+2, asm.Half),
				asm.HostTo(asm.BE, asm.R5, asm.Half),
				asm.JEq.Imm(asm.R5, port, "drop"),
				asm.Ja.Label("pass"),

				asm.Mov.Reg(asm.R4, asm.R2).WithSymbol("ipv4"),
				asm.Add.Imm(asm.R4, 14+20+4),
				asm.JGT.Reg(asm.R4, asm.R3, "pass"),
				asm.LoadMem(asm.R5, asm.R2, 14+9, asm.Byte),
				asm.JNE.Imm(asm.R5, 17, "pass"),
				asm.LoadMem(asm.R5, asm.R2, 14+20+2, asm.Half),
				asm.HostTo(asm.BE, asm.R5, asm.Half),
				asm.JNE.Imm(asm.R5, port, "pass"),

				asm.Mov.Imm(asm.R0, xdpDrop).WithSymbol("drop"),
				asm.Return(),
				asm.Mov.Imm(asm.R0, xdpPass).WithSymbol("pass"),
				asm.Return(),
			},
			License: "Apache-2.0",
		})
		if err != nil {
			return fmt.Errorf("netnstest: load the program that blocks RoCE: %w", err)
		}
		defer prog.Close() // the device keeps the program
		fd = prog.FD()
	}
	return h.attachXDP(i, fd)
}

// attachXDP attaches a program to the i-th link, or takes it off if fd is -1.
func (h *Host) attachXDP(i, fd int) error {
	return h.Do(func() error {
		l, err := netlink.LinkByName(h.Links[i].Name)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetXdpFdWithFlags(l, fd, nl.XDP_FLAGS_SKB_MODE); err != nil {
			return fmt.Errorf("netnstest: attach the dropping program to %s: %w", h.Links[i].Name, err)
		}
		return nil
	})
}
