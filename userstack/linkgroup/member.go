// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"slices"
	"time"

	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/wire"
)

// member is a Conn as the connection itself sees it: [conn.Group].
type member Conn

var _ conn.Group = (*member)(nil)

func (m *member) Now() time.Time         { return m.g.now }
func (m *member) Begin(now time.Time)    { m.g.now = now }
func (m *member) End()                   { m.g.advance(m.g.now) }
func (m *member) SetTimer(at time.Time)  { m.g.timers.setConn(at) }
func (m *member) Open() bool             { return m.g.phase == phaseOpen }
func (m *member) Active() bool           { return m.link.state == smc.LinkActive }
func (m *member) Ready() bool            { return m.Open() && m.link.usable() }
func (m *member) Room() int              { return m.link.room() }
func (m *member) AwaitRoom()             { m.link.enqueue((*Conn)(m)) }
func (m *member) LastMessage() time.Time { return m.link.lastRx }
func (m *member) LastSign() time.Time    { return m.link.alive() }
func (m *member) PeerLives() bool        { return m.g.tests.peerLives() }

func (m *member) NewChunk(size int) (*conn.Chunk, error) { return m.g.env.NewChunk(size) }
func (m *member) FreeChunk(k *conn.Chunk)                { m.g.env.FreeChunk(k) }

func (m *member) Wake(w conn.Wake) {
	kind := ActWakeRead
	switch w {
	case conn.WakeWrite:
		kind = ActWakeWrite
	case conn.WakeUrgent:
		kind = ActWakeUrgent
	}
	m.g.actions.add(Action{Kind: kind, Conn: (*Conn)(m)})
}

func (m *member) TakeTurn() bool {
	if m.waitOn != nil {
		return false
	}
	if m.link.waitHead != nil {
		m.link.enqueue((*Conn)(m))
		return false
	}
	return true
}

func (m *member) Write(k *conn.Chunk, off, n, at int) {
	to := &m.peerRMB.at[m.link.slot]
	elem := to.Addr + uint64(m.peer.SizeCode.Bytes())*uint64(m.peer.Index-1)
	m.g.actions.add(Action{
		Kind: ActWrite, Link: m.link, Conn: (*Conn)(m), Chunk: k, Off: off, Len: n,
		RemoteAddr: elem + uint64(at), RKey: to.RKey,
	})
}

func (m *member) Send(msg wire.CDC, requests int, r conn.Receipt) {
	req := m.link.push(requests)
	req.conn, req.receipt = (*Conn)(m), r
	a := m.g.actions.next()
	*a = Action{Kind: ActSend, Link: m.link, Conn: (*Conn)(m), Token: req.token, PeerFull: r.PeerFull(), plain: msg.Flags&wire.ProdFailoverVerify == 0}
	if _, err := msg.AppendBinary(a.Msg[:0]); err != nil {
		panic("linkgroup: cannot encode a CDC message: " + err.Error())
	}
}

func (m *member) TakePlanned() bool {
	to := m.planned
	m.planned = nil
	if to == nil || to.state != smc.LinkActive {
		return false
	}
	(*Conn)(m).setLink(to)
	return true
}

func (m *member) TakeOther() bool {
	to := m.g.links.best(m.link)
	if to == nil {
		return false
	}
	(*Conn)(m).setLink(to)
	return true
}

func (m *member) Test() {
	if m.link.usable() && !m.link.testing {
		m.g.tests.send(m.link)
	}
}

func (m *member) Leave(peerMayWrite bool) (announce bool) {
	g, c := m.g, (*Conn)(m)
	c.planned = nil
	delete(g.conns, c.Token())
	c.link.conns--
	if c.waitOn != nil {
		c.waitOn.unqueue(c)
	}
	if len(g.conns) == 0 && g.phase == phaseOpen && g.cfg.Timers.Idle > 0 {
		g.timers.set(timerIdle, g.now.Add(g.cfg.Timers.Idle))
	}
	if t := c.peerRMB; t != nil {
		i := slices.Index(t.conns, c)
		t.conns = slices.Delete(t.conns, i, i+1)
		c.peerRMB = nil
		if g.peerTokens[c.peer.Token] == c {
			delete(g.peerTokens, c.peer.Token)
		}
	}
	if i := slices.Index(c.rmb.waiting, c); i >= 0 {
		c.rmb.waiting = slices.Delete(c.rmb.waiting, i, i+1)
	}
	if e := &c.rmb.elems[c.elem]; peerMayWrite && !e.withdrawn {
		e.withdrawn = true
		g.rmbs.withdraw(c.rmb)
	}
	return g.end.opened()
}

func (m *member) Closed(err error) {
	m.stage = stageEnded
	m.g.actions.add(Action{Kind: ActConnClosed, Conn: (*Conn)(m), Err: err})
}

func (m *member) FreeElement(notBefore time.Time) { m.g.rmbs.put(m.g.now, m.rmb, m.elem, notBefore) }
