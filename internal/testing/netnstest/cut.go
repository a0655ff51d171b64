// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
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
// and protocols get a packet, so nothing on the host receives what it drops.
func (h *Host) SetLoss(i int, share float64) error {
	fd := -1 // -1 detaches the program
	if share > 0 {
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.XDP,
			Instructions: asm.Instructions{
				asm.FnGetPrandomU32.Call(),
				asm.RSh.Imm(asm.R0, 1), // 31 bits: immediate values have a sign
				asm.Mov.Reg(asm.R1, asm.R0),
				asm.Mov.Imm(asm.R0, xdpDrop),
				asm.JLE.Imm(asm.R1, int32(min(share, 1)*(1<<31-1)), "end"),
				asm.Mov.Imm(asm.R0, xdpPass),
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
