// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"testing"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// capPlan is what one of the two kernels of a capture named: a group that gets
// the same names for its queue pairs, RMBs and connections from its Env should
// say the same, byte for byte.
type capPlan struct {
	t       *testing.T
	version uint8
	peerOS  smc.OS
	ends    []Endpoint          // in the order of their creation
	devices []Device            // of ends
	numbers map[capEnd]uint8    // link numbers
	rmbs    map[capRKey]*capRMB // by their RKey on each link
	conns   map[uint16]*capConn // by TCP port
	order   []uint16            // ports
	nextEnd int
	newRMB  *capRMB // for the connection that is being made
	token   uint32  // likewise
}

// capRKey names an RMB on a link.
type capRKey struct {
	link uint8
	rkey smc.RKey
}

// capRMB is an RMB of the kernel, by link number.
type capRMB struct {
	at map[uint8]smc.RToken
}

// capConn is a connection as ACCEPT and CONFIRM have it.
type capConn struct {
	accept, confirm wire.Endpoint
	first           bool
	link            uint8
}

// of returns what a side told of itself.
func (c *capConn) of(role smc.Role) wire.Endpoint {
	if role == smc.Server {
		return c.accept
	}
	return c.confirm
}

// newPlan collects what the kernel in the given role named.
func newPlan(t *testing.T, role smc.Role, capture []capMessage) *capPlan {
	p := &capPlan{
		t: t, version: wire.Version1,
		numbers: map[capEnd]uint8{}, rmbs: map[capRKey]*capRMB{}, conns: map[uint16]*capConn{},
	}
	for _, m := range capture {
		if m.clc != nil {
			p.clc(role, m)
		}
	}
	for _, m := range capture {
		if m.msg != nil {
			p.llc(m.server == (role == smc.Server), m)
		}
	}
	for _, port := range p.order {
		c := p.conns[port]
		e := c.of(role)
		if c.link = p.numbers[capEnd{e.GID, e.QPN}]; c.link == 0 {
			c.link = 1 // the group is older than the capture
			p.numbers[capEnd{e.GID, e.QPN}] = 1
			p.numbers[capEnd{c.of(1 - role).GID, c.of(1 - role).QPN}] = 1
			p.end(endOf(e))
		}
		p.rmb(c.link, e.RMB)
	}
	return p
}

func (p *capPlan) clc(role smc.Role, m capMessage) {
	c := p.conns[m.port]
	if c == nil {
		c = &capConn{}
		p.conns[m.port] = c
		p.order = append(p.order, m.port)
	}
	switch x := m.clc.(type) {
	case wire.Accept:
		c.accept, c.first = x.Endpoint, x.FirstContact
	case wire.Confirm:
		c.confirm = x.Endpoint
	case wire.AcceptV2:
		c.accept, c.first = x.Endpoint, x.FirstContact != nil
		p.version, p.peerOS = wire.Version2, smc.OSLinux
	case wire.ConfirmV2:
		c.confirm = x.Endpoint
	}
	if t := m.clc.CLCType(); c.first && (t == wire.TypeAccept && role == smc.Server || t == wire.TypeConfirm && role == smc.Client) {
		e := c.of(role)
		p.end(endOf(e))
	}
}

func endOf(e wire.Endpoint) Endpoint {
	return Endpoint{GID: e.GID, MAC: e.MAC, QPN: e.QPN, PSN: e.PSN, MTU: e.MTU}
}

// end notes a queue pair and the device that it is on.
func (p *capPlan) end(e Endpoint) {
	p.ends = append(p.ends, e)
	for _, d := range p.devices {
		if d.GID == e.GID {
			return
		}
	}
	p.devices = append(p.devices, Device{ID: len(p.devices), Name: "rxe", GID: e.GID, MAC: e.MAC, MTU: e.MTU, Up: true})
}

// llc takes what an LLC message of this side, or of the other, names.
func (p *capPlan) llc(own bool, m capMessage) {
	via := p.numbers[m.to]
	msg, err := wire.ParseLLC(m.msg)
	if err != nil {
		return // CDC
	}
	switch x := msg.(type) {
	case wire.ConfirmLink:
		p.numbers[m.to] = x.LinkNum
		p.numbers[capEnd{x.GID, x.QPN}] = x.LinkNum
	case wire.AddLink:
		if x.Rejected {
			return
		}
		p.numbers[capEnd{x.GID, x.QPN}] = x.LinkNum
		if own {
			p.end(Endpoint{GID: x.GID, MAC: x.MAC, QPN: x.QPN, PSN: x.PSN, MTU: x.MTU})
		}
		if own && x.Ext != nil {
			p.pairs(via, x.LinkNum, x.Ext.Pairs)
		}
	case wire.AddLinkCont:
		if own {
			p.pairs(via, x.LinkNum, x.Pairs[:x.Count()])
		}
	case wire.ConfirmRKey:
		if own && !x.Reply {
			r := p.rmb(via, x.This)
			for _, o := range x.Other[:x.Count()] {
				r.at[o.LinkNum] = o.RToken
				p.rmbs[capRKey{o.LinkNum, o.RKey}] = r
			}
		}
	}
}

func (p *capPlan) pairs(via, link uint8, pairs []wire.RKeyPair) {
	for _, x := range pairs {
		r := p.rmb(via, smc.RToken{RKey: x.RefRKey})
		r.at[link] = x.New
		p.rmbs[capRKey{link, x.New.RKey}] = r
	}
}

// rmb returns the RMB of that RKey.
func (p *capPlan) rmb(link uint8, k smc.RToken) *capRMB {
	r := p.rmbs[capRKey{link, k.RKey}]
	if r == nil {
		r = &capRMB{at: map[uint8]smc.RToken{}}
		p.rmbs[capRKey{link, k.RKey}] = r
	}
	if k.Addr != 0 {
		r.at[link] = k
	}
	return r
}

// The Env of a group that replays the plan.

func (p *capPlan) NewQP(_ *Link, d Device) (Endpoint, error) {
	if p.nextEnd == len(p.ends) {
		return Endpoint{}, ErrNoDevice
	}
	e := p.ends[p.nextEnd]
	p.nextEnd++
	if e.GID != d.GID {
		p.t.Errorf("queue pair on %s, the kernel has it on %s", d.GID, e.GID)
	}
	return e, nil
}

func (p *capPlan) ConnectQP(*Link, Endpoint, smc.MTU) error { return nil }
func (p *capPlan) ReadyQP(*Link) error                      { return nil }
func (p *capPlan) CloseQP(*Link)                            {}

func (p *capPlan) NewRMB(size int) ([]byte, any, error) { return make([]byte, size), p.newRMB, nil }

func (p *capPlan) RegisterRMB(handle any, l *Link) (smc.RKey, uint64, error) {
	number := max(l.id, 1) // a client learns that of the first link later
	// None is known on a link that the peer rejected.
	k := handle.(*capRMB).at[number]
	return k.RKey, k.Addr, nil
}

func (p *capPlan) DeregisterRMB(any, *Link) {}
func (p *capPlan) FreeRMB(any)              {}
func (p *capPlan) ZeroRMB(any, int, int)    {}
func (p *capPlan) TrimRMB(any, int, int)    {}
func (p *capPlan) NewChunk(size int) (*conn.Chunk, error) {
	return &conn.Chunk{Mem: make([]byte, size)}, nil
}
func (p *capPlan) FreeChunk(*conn.Chunk) {}

// Random is asked for alert tokens, and for the data of TEST LINK, which is
// zero with Linux.
func (p *capPlan) Random() uint32 {
	t := p.token
	p.token = 0
	return t
}
