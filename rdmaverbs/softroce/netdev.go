// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"errors"
	"net"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"
)

// Bytes that a packet needs beside its payload in the netdev's MTU, for the
// longest headers that carry a full payload: RDMA WRITE ONLY with immediate
// (BTH, RETH, ImmDt), and the ICRC.
const (
	overheadV1 = header.GRHLen + header.BTHLen + header.RETHLen + header.ImmDtLen + header.ICRCLen
	// overheadV2 takes the longer of the two IP headers.
	overheadV2 = header.IPv6Len + header.UDPLen + header.BTHLen + header.RETHLen + header.ImmDtLen + header.ICRCLen
)

// Errors of the packet I/O.
var (
	errNotEthernet = errors.New("softroce: netdev is neither Ethernet nor loopback")
	errWireClosed  = errors.New("softroce: wire is closed")
	errNetdevGone  = errors.New("softroce: netdev is gone")
)

// netdevInfo tells the facts about a netdev at one moment.
type netdevInfo struct {
	Name   string
	Index  int
	HWAddr net.HardwareAddr // 6 bytes; see loopbackMAC for lo
	MTU    int              // bytes above the Ethernet header
	Up     bool             // administratively up, and has a carrier
	VLAN   uint16           // VLAN id of a VLAN netdev, else 0
	GIDs   []rdmaverbs.GIDEntry

	loopback   bool
	hasDefault bool // the link-local address made of HWAddr is an address of the netdev
}

// pathMTU returns the largest path MTU that the netdev carries with the
// encapsulation t, or 0 if there is none.
func (i *netdevInfo) pathMTU(t rdmaverbs.GIDType) smc.MTU {
	if t == rdmaverbs.RoCEv2 {
		return smc.MTUFor(i.MTU, overheadV2)
	}
	return smc.MTUFor(i.MTU, overheadV1)
}

// netdevChange is what a watch reports: the facts as they are now, or that
// the netdev is gone (Info then holds the last facts).
type netdevChange struct {
	Info netdevInfo
	Gone bool
}
