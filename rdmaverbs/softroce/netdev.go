// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"errors"
	"net"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"
)

// Bytes of headers and ICRC in the MTU of the netdev, for the longest headers
// of a packet with full payload: RDMA WRITE ONLY with immediate (BTH, RETH,
// ImmDt).
const (
	overheadV1 = header.GRHLen + header.BTHLen + header.RETHLen + header.ImmDtLen + header.ICRCLen
	// overheadV2 is for IPv6, the longer of the two IP headers.
	overheadV2 = header.IPv6Len + header.UDPLen + header.BTHLen + header.RETHLen + header.ImmDtLen + header.ICRCLen
)

// Errors of the packet I/O.
var (
	errNotEthernet = errors.New("softroce: netdev is neither Ethernet nor loopback")
	errWireClosed  = errors.New("softroce: wire is closed")
	errNetdevGone  = errors.New("softroce: netdev is gone")
)

// netdevInfo has the facts about a netdev at one moment.
type netdevInfo struct {
	Name   string
	Index  int
	HWAddr net.HardwareAddr // 6 bytes; see loopbackMAC for lo
	MTU    int              // bytes after the Ethernet header
	Up     bool             // administratively up, and has a carrier
	VLAN   uint16           // VLAN id of a VLAN netdev, else 0
	GIDs   []rdmaverbs.GIDEntry

	loopback   bool
	hasDefault bool // the netdev has the link-local address that is derived from HWAddr
}

// pathMTU returns the largest path MTU that the netdev carries with the
// encapsulation t, or 0 if there is none.
func (i *netdevInfo) pathMTU(t rdmaverbs.GIDType) smc.MTU {
	if t == rdmaverbs.RoCEv2 {
		return smc.MTUFor(i.MTU, overheadV2)
	}
	return smc.MTUFor(i.MTU, overheadV1)
}

// netdevChange is a report of a watch: the present facts, or that the netdev is
// gone. If it is gone, Info has the last facts.
type netdevChange struct {
	Info netdevInfo
	Gone bool
}
