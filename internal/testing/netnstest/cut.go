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

// setDrop attaches or detaches an XDP program that drops everything. It runs before
// packet sockets and protocols get a packet, so nothing on the host receives it.
func (h *Host) setDrop(i int, drop bool) error {
	fd := -1 // -1 detaches the program
	if drop {
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.XDP,
			Instructions: asm.Instructions{
				asm.Mov.Imm(asm.R0, 1), // XDP_DROP
				asm.Return(),
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
