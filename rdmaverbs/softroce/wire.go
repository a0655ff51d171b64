// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"net"

	"smcr/rdmaverbs"
	"smcr/smc"
)

// wire is the packet I/O of a device. The RC transport above it has transport
// packets (BTH, extended headers, payload, pad). The wire has the encapsulation
// (Ethernet and GRH for RoCE version 1; IP and UDP for version 2), the ICRC and
// the sockets. Tests use a simulated network as a wire.
type wire interface {
	// send transmits packets to one destination, in order, in as few system
	// calls as possible. It does not keep pkts. Packets that the netdev does
	// not accept are lost without an error. An error means that the wire cannot
	// be used any more (closed, netdev gone).
	send(dst *path, pkts []packet) error
	// start begins reception; h is called from one goroutine at a time.
	start(h handler) error
	// sourcePort returns the UDP port from which packets with this path are sent; 0 for
	// version 1. It uses only typ, sgid and flow.
	sourcePort(p *path) uint16
	// close stops reception and waits until no h call is under way.
	close() error
}

// handler handles a batch of received packets that passed the checks of ICRC
// and addresses. The slices are valid until it returns.
type handler func(batch []inbound)

// path has the addresses of the packets of a queue pair.
type path struct {
	typ      rdmaverbs.GIDType
	sgid     smc.GID
	dgid     smc.GID
	dmac     net.HardwareAddr // 6 bytes; with version 2 it may be nil: the IP stack resolves it
	hopLimit uint8
	flow     uint16 // version 2: selects one of the UDP source ports
}

// cameBack reports whether a packet has the addresses of the path in the other
// direction.
func (p *path) cameBack(in *inbound) bool {
	return in.typ == p.typ && in.sgid == p.dgid && in.dgid == p.sgid
}

// packet is an outgoing transport packet: hdr (BTH and extended headers), then
// the payload pieces, then 0 to 3 pad bytes as the BTH says. The wire adds the
// ICRC.
type packet struct {
	hdr     []byte
	payload [2][]byte
}

// inbound is a received transport packet: BTH to the end of pad, without
// ICRC.
type inbound struct {
	typ        rdmaverbs.GIDType
	sgid, dgid smc.GID // source and destination in the packet
	srcPort    uint16  // UDP source port; 0 with version 1
	smac       [6]byte // zero if the socket does not tell it (version 2)
	data       []byte
}
