// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"net"

	"smcr/rdmaverbs"
	"smcr/smc"
)

// wire is the packet I/O seam. Above it stands the RC transport, which deals
// in transport packets (BTH, extended headers, payload, pad); below it the
// encapsulation (Ethernet and GRH for RoCE version 1; IP and UDP for
// version 2), the ICRC and the sockets. Tests put a simulated fabric there.
type wire interface {
	// send transmits packets to one destination, in order, in as few system
	// calls as possible. It keeps nothing of pkts. Packets that the netdev
	// does not take are lost, as on any network; an error means that the
	// wire is unusable (closed, netdev gone).
	send(dst *path, pkts []packet) error
	// start begins reception; h is called from one goroutine at a time.
	start(h handler) error
	// close stops reception and waits until no h call is under way.
	close() error
}

// handler takes a batch of received packets that passed the ICRC and
// address checks. The slices are valid until it returns.
type handler func(batch []inbound)

// path is where the packets of a queue pair go.
type path struct {
	typ      rdmaverbs.GIDType
	sgid     smc.GID
	dgid     smc.GID
	dmac     net.HardwareAddr // 6 bytes; version 2: as resolved
	hopLimit uint8
	srcPort  uint16 // version 2: paths with different ones use different UDP source ports, as far as there are
}

// packet is an outgoing transport packet: hdr (BTH and extended headers),
// then the payload pieces, then 0 to 3 pad bytes as the BTH says. The ICRC
// is the wire's.
type packet struct {
	hdr     []byte
	payload [2][]byte
}

// inbound is a received transport packet: BTH to the end of pad, without
// ICRC.
type inbound struct {
	typ        rdmaverbs.GIDType
	sgid, dgid smc.GID // as in the packet: its source, its destination
	smac       [6]byte // zero where the socket does not tell (version 2)
	data       []byte
}
