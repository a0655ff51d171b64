// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"smcr/nl"
	"smcr/smc"
)

// A Stack is a stack with everything that is drawn of it. The tags are the fields of
// smcr topology -o json.
type Stack struct {
	Name     string `json:"stack"` // "kernel", "user", …
	Host     string `json:"hostname"`
	Software string `json:"software,omitempty"` // name and version of a stack in user space
	Version  uint8  `json:"smc_version"`        // highest version of SMC
	Release  uint8  `json:"smc_release"`        // its release
	Conns    Conns  `json:"connections"`
	// Rates is what programs sent and received over SMC-R and SMC-D. Nil: not known.
	Rates   *Rates   `json:"rates,omitempty"`
	Devices []Port   `json:"devices"`
	Peers   []Peer   `json:"peers"`
	Omitted *Omitted `json:"-"` // set by Limit
}

// Conns is how many connections a stack has now, by what carries them.
type Conns struct {
	SMCR   int `json:"smcr"`
	SMCD   int `json:"smcd"`
	TCP    int `json:"tcp"` // became plain TCP
	Listen int `json:"listening"`
}

// Rates are bytes per second.
type Rates struct {
	Sent     uint64 `json:"sent_per_second"`
	Received uint64 `json:"received_per_second"`
}

// A Port is a port of a RoCE device.
type Port struct {
	IBDev    string `json:"ibdev"`
	IBPort   int    `json:"ibport"`
	NetDev   string `json:"netdev"`
	State    string `json:"state"` // ACTIVE or INACTIVE
	PNETID   string `json:"pnetid,omitempty"`
	GID      string `json:"gid,omitempty"`
	MTU      uint32 `json:"mtu,omitempty"` // path MTU in bytes
	Links    uint32 `json:"links"`
	Critical bool   `json:"critical"`
	Refused  uint64 `json:"refused,omitempty"` // packets that a device in software refused
	Rates    *Rates `json:"rates,omitempty"`
}

// A Peer is a host at the other end of link groups.
type Peer struct {
	// Address is the IP address of the peer, or the GID of its first link if a kernel does
	// not tell the address.
	Address string  `json:"peer"`
	Host    string  `json:"peer_host,omitempty"` // the name that it gives itself (version 2)
	Groups  []Group `json:"linkgroups"`
}

// A Group is a link group.
type Group struct {
	ID      string `json:"id"`
	Role    string `json:"role"` // CLNT or SERV: of this host
	Type    string `json:"type"`
	Version uint8  `json:"version"`
	PNETID  string `json:"pnetid,omitempty"`
	VLAN    uint16 `json:"vlan,omitempty"`
	Conns   uint32 `json:"conns"`
	Rates   *Rates `json:"rates,omitempty"`
	Links   []Link `json:"links"`
}

// A Link is one pair of queue pairs of a link group.
type Link struct {
	ID      uint8  `json:"id"`
	State   string `json:"state"`
	IBDev   string `json:"ibdev"`
	IBPort  uint8  `json:"ibport"`
	NetDev  string `json:"netdev"`
	GID     string `json:"gid"`
	PeerGID string `json:"peer_gid"`
	MTU     uint32 `json:"mtu,omitempty"`
	Conns   uint32 `json:"conns"`
	// Resent is how many packets the link sent again since it was made. Nil: not known, as
	// with the links of the kernel.
	Resent *uint64 `json:"resent_packets,omitempty"`
	Rates  *Rates  `json:"rates,omitempty"`
}

// Omitted is what Limit left out of a stack.
type Omitted struct {
	Groups int    // link groups
	Peers  int    // peers none of whose link groups is shown
	Conns  uint64 // connections of the link groups
	Ports  int    // ports of devices
}

// The states of links and ports, as they are drawn.
var (
	linkActive     = smc.LinkActive.String()
	linkActivating = smc.LinkActivating.String()
)

const (
	portActive   = "ACTIVE"
	portInactive = "INACTIVE"
)

// portState returns the state of a port.
func portState(p *nl.Port) string {
	if p.Active {
		return portActive
	}
	return portInactive
}

// troubled reports whether a link of the group is not active, or the group has none.
func (g *Group) troubled() bool {
	for i := range g.Links {
		if g.Links[i].State != linkActive {
			return true
		}
	}
	return len(g.Links) == 0
}
