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

// Cut makes both ends of the i-th link drop every packet they receive while
// carrier and addresses stay: to each host the other has vanished without a
// word, as when it lost its power behind a switch. Uncut ends that. Packets
// sent are still seen by a capture on the sender.
func (p *Pair) Cut(i int) error {
	return errors.Join(p.A.setDeaf(i, true), p.B.setDeaf(i, true))
}

// Uncut undoes Cut.
func (p *Pair) Uncut(i int) error {
	return errors.Join(p.A.setDeaf(i, false), p.B.setDeaf(i, false))
}

// setDeaf attaches an XDP program that drops everything. It runs before packet
// sockets and protocols see a packet, so nothing of the host hears it.
func (h *Host) setDeaf(i int, deaf bool) error {
	fd := -1 // detaches
	if deaf {
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
		defer prog.Close() // the device keeps it
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
