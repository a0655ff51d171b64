// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"
	"smcr/userstack/wire"
)

// Peer is a lying peer: a client that has made a link group of version 2 with a victim, with
// one link and one connection. It answers the victim's LLC requests as it must. It is safe
// for concurrent use, but for the methods that say otherwise.
type Peer struct {
	// QP is the attacker's end of the link.
	QP *QP
	// Victim is what ACCEPT says of the connection: the queue pair, the RMB, the alert
	// token.
	Victim wire.Endpoint
	// Layout is that of the LLC messages of the link group.
	Layout wire.LLCLayout
	// LinkNum is the number of the link, as CONFIRM LINK says.
	LinkNum uint8

	self Identity
	eid  wire.EID
	tcp  *Dialog
	seq  atomic.Uint32 // of the last CDC message of the first connection

	sent, got uint64 // bytes of the first connection's streams, see Transfer and Echo

	ended   chan struct{} // closed when the victim has deleted all links
	endOnce sync.Once
	cdc     chan wire.CDC
	replies chan wire.LLC
}

// answerTime bounds the wait for a message of the victim.
const answerTime = testkind.Patience

// ownRMB returns the name of an RMB of the attacker.
func ownRMB(n uint32) smc.RToken {
	return smc.RToken{RKey: smc.RKey(0xbad0000 + n), Addr: 0x7f00_0000_0000 + uint64(n)<<24}
}

// Join makes a link group with the stack that serves an address, by a first contact of
// version 2 with an enterprise ID that the victim has, and says who it is. The caller closes
// it.
func (h *Host) Join(ctx context.Context, to netip.AddrPort, eid wire.EID, self Identity) (*Peer, error) {
	list, err := h.Dial(ctx, to, 1)
	if err != nil {
		return nil, err
	}
	p := &Peer{
		self: self, eid: eid, tcp: list[0], QP: h.Port.NewQP(0x123456),
		ended: make(chan struct{}), cdc: make(chan wire.CDC, 1024), replies: make(chan wire.LLC, 16),
	}
	if err := p.firstContact(); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	go p.serve()
	return p, nil
}

func (p *Peer) firstContact() error {
	own, d := &p.self, p.tcp
	proposal, err := own.Proposal(p.eid)
	if err != nil {
		return err
	}
	if err := d.Send(proposal); err != nil {
		return err
	}
	acc, err := ReceiveAs[wire.AcceptV2](d, answerTime)
	if err != nil {
		return err
	}
	if acc.FirstContact == nil {
		return errors.New("adversary: ACCEPT says that there is a link group already")
	}
	p.Victim = acc.Endpoint
	gid, ok := acc.GID.IPv4()
	if !ok {
		return fmt.Errorf("adversary: GID %s of the victim is not an IPv4 address", acc.GID)
	}
	p.QP.Connect(gid, uint32(acc.QPN), uint32(acc.PSN))
	p.QP.Register(ownRMB(1).Addr, make([]byte, elementSize.Bytes()))
	ext := *acc.FirstContact
	if err := d.Send(wire.ConfirmV2{
		Endpoint: own.Endpoint(p.QP, ownRMB(1), 1, 0xbad00001), EID: p.eid, FirstContact: &ext, GIDs: []smc.GID{own.GID},
	}); err != nil {
		return err
	}
	select {
	case b, ok := <-p.QP.Messages:
		if !ok {
			return errors.New("adversary: the port is closed")
		}
		m, err := wire.ParseConfirmLink(b)
		if err != nil {
			return err
		}
		p.Layout, p.LinkNum = m.Layout, m.LinkNum
		m.Reply, m.MAC, m.GID, m.QPN, m.LinkUserID, m.MaxLinks = true, own.MAC, own.GID, smc.QPN(p.QP.Num), 0xbad, 1
		return p.LLC(m)
	case <-time.After(answerTime):
		return errors.New("adversary: no CONFIRM LINK")
	}
}

// Close closes the TCP connection of the peer. The victim finds out by itself that the
// link group is over.
func (p *Peer) Close() error { return p.tcp.Close() }

// Ended is closed when the victim has deleted all links of the link group.
func (p *Peer) Ended() <-chan struct{} { return p.ended }

// Test sends TEST LINK, and waits for the answer.
func (p *Peer) Test() error {
	want := wire.TestLink{UserData: [16]byte{15: byte(p.QP.PSN())}}
	if err := p.LLC(want); err != nil {
		return err
	}
	want.Layout, want.Reply = p.Layout, true
	late := time.NewTimer(answerTime)
	defer late.Stop()
	for {
		select {
		case m := <-p.replies:
			if m == wire.LLC(want) {
				return nil
			}
		case <-p.ended:
			return errors.New("adversary: the victim has ended the link group")
		case <-late.C:
			return errors.New("adversary: no answer to TEST LINK")
		}
	}
}

// LLC sends LLC messages, in the layout of the link group, and waits until the victim's
// queue pair has acknowledged them. The errors are those of [QP.Send].
func (p *Peer) LLC(msgs ...wire.LLC) error {
	pkts := make([]Packet, 0, len(msgs))
	for _, m := range msgs {
		b, err := wire.AppendLLC(nil, p.Layout, m)
		if err != nil {
			return err
		}
		pkts = append(pkts, Message(b))
	}
	return p.QP.Send(pkts...)
}

// Message returns the packet of a SEND.
func Message(b []byte) Packet { return Packet{Op: header.SendOnly, Payload: b} }

// Write returns the packet of an RDMA WRITE.
func Write(rkey smc.RKey, addr uint64, b []byte) Packet {
	return Packet{Op: header.WriteOnly, RETH: &header.RETHFields{VA: addr, RKey: uint32(rkey), DMALen: uint32(len(b))}, Payload: b}
}

// Say returns the CDC message with the next sequence number of the first connection.
func (p *Peer) Say(m wire.CDC) Packet {
	m.Seq, m.Token = uint16(p.seq.Add(1)), p.Victim.AlertToken
	return CDC(m)
}

// CDC returns the packet of a CDC message.
func CDC(m wire.CDC) Packet {
	b, err := m.AppendBinary(nil)
	if err != nil {
		panic("adversary: " + err.Error()) // flags that do not exist
	}
	return Message(b)
}

// serve answers the requests of the victim.
func (p *Peer) serve() {
	for b := range p.QP.Messages {
		if wire.IsCDC(b) {
			if m, err := wire.ParseCDC(b); err == nil {
				select {
				case p.cdc <- m:
				default:
				}
			}
			continue
		}
		m, err := wire.ParseLLC(b)
		if err != nil {
			continue
		}
		if m.IsReply() {
			select {
			case p.replies <- m:
			default:
			}
			continue
		}
		if reply := p.reply(m); reply != nil {
			_ = p.LLC(reply) // the next request shows an error
		}
	}
}

// reply returns what an honest client answers, or nil.
func (p *Peer) reply(m wire.LLC) wire.LLC {
	switch m := m.(type) {
	case wire.TestLink:
		m.Reply = true
		return m
	case wire.ConfirmRKey:
		m.Reply = true
		return m
	case wire.DeleteRKeyV2:
		return wire.DeleteRKeyV2{Reply: true, Count: m.Count}
	case wire.DeleteLink:
		if m.All {
			p.endOnce.Do(func() { close(p.ended) })
			return nil
		}
		m.Reply = true
		return m
	}
	return nil
}
