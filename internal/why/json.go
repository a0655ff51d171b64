// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"

	"smcr/internal/cmdutil"
	"smcr/nl"
)

// A socketJSON is a socket in JSON.
type socketJSON struct {
	Kind     string       `json:"kind"`
	State    string       `json:"state"`
	Local    string       `json:"local"`
	Remote   string       `json:"remote,omitempty"`
	Accepted bool         `json:"accepted"`
	UID      uint32       `json:"uid"`
	Process  *processJSON `json:"process,omitempty"`

	Carrier   string `json:"carrier"`
	Stack     string `json:"stack,omitempty"`
	LinkGroup string `json:"linkgroup,omitempty"`
	IBDev     string `json:"ibdev,omitempty"`
	Software  bool   `json:"software_roce,omitempty"`

	Why      string `json:"why"`
	Reason   string `json:"reason,omitempty"`
	Code     string `json:"code,omitempty"`
	PeerCode string `json:"peer_code,omitempty"`
	Advice   string `json:"advice"`

	Clients *clientsJSON `json:"clients,omitempty"`
	Traffic *trafficJSON `json:"traffic,omitempty"`
	Resent  *resentJSON  `json:"resent,omitempty"`
}

type processJSON struct {
	PID     int    `json:"pid"`
	UID     uint32 `json:"uid"`
	Command string `json:"command"`
	Unit    string `json:"unit,omitempty"`
	// Container is the ID of its container.
	Container string `json:"container,omitempty"`
	// Part is which part of smcr it is.
	Part  string `json:"part_of_smcr,omitempty"`
	Under bool   `json:"under_smcr_run"`
	More  int    `json:"more"` // further processes that have the socket
}

type clientsJSON struct {
	SMC int `json:"smc"`
	TCP int `json:"tcp"`
}

type trafficJSON struct {
	Sent         uint64  `json:"tx_bytes"`
	Received     uint64  `json:"rx_bytes"`
	SentRate     *uint64 `json:"tx_bytes_per_second,omitempty"` // nil: not measured
	ReceivedRate *uint64 `json:"rx_bytes_per_second,omitempty"`
}

type resentJSON struct {
	N      uint64  `json:"total"`
	New    *uint64 `json:"now,omitempty"`  // nil: not measured
	Link   uint8   `json:"link,omitempty"` // whose connections have sent it, or those of Device
	Device string  `json:"device,omitempty"`
}

// carriers are the carriers in JSON.
var carriers = map[Carrier]string{SMCR: "SMCR", SMCD: "SMCD", TCP: "TCP"}

func newSocketJSON(f *Facts) socketJSON {
	v := Decide(f)
	c := &f.Conn
	j := socketJSON{
		Kind: "connection", State: c.State.String(), Local: cmdutil.Plain(c.Local).String(), Accepted: f.Accepted, UID: c.UID,
		Carrier: carriers[v.Carrier], Stack: f.Stack, Software: f.Software, Why: v.Why, Reason: v.Reason, Advice: v.Advice,
	}
	if f.listens() {
		j.Kind, j.Clients = "listener", &clientsJSON{f.Clients.SMC, f.Clients.TCP}
	} else if c.Remote.IsValid() {
		j.Remote = cmdutil.Plain(c.Remote).String()
	}
	if p := f.Process; p != nil {
		j.Process = &processJSON{p.PID, p.UID, p.Command, p.Unit, p.Container, p.Part, p.Attached, f.More}
	}
	if c.Mode == nl.ModeSMCR && c.Link != nil {
		j.IBDev = c.Link.IBDev
	}
	if c.LinkGroup != 0 {
		j.LinkGroup = c.LinkGroup.String()
	}
	if v.Code != 0 {
		j.Code = fmt.Sprintf("0x%08x", uint32(v.Code))
	}
	if v.Peer != 0 {
		j.PeerCode = fmt.Sprintf("0x%08x", uint32(v.Peer))
	}
	if t := f.Traffic; t != nil {
		j.Traffic = &trafficJSON{Sent: t.Sent, Received: t.Received}
		if s, r, ok := t.rates(); ok {
			j.Traffic.SentRate, j.Traffic.ReceivedRate = &s, &r
		}
	}
	if r := f.Resent; r != nil {
		j.Resent = &resentJSON{N: r.N, Link: r.Link, Device: r.Device}
		if r.Time > 0 {
			j.Resent.New = &r.New
		}
	}
	return j
}
