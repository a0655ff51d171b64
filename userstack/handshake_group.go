// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"time"

	"smcr/smc"
	"smcr/userstack/driver"
	"smcr/userstack/linkgroup"
	"smcr/userstack/rendezvous"
	"smcr/userstack/wire"
)

// What a rendezvous does with link groups and connections.

// connConfig is what the rendezvous knows of the connection.
func (h *handshake) connConfig() driver.ConnConfig {
	return driver.ConnConfig{
		TCP: h.tcp, Local: addrPort(h.tcp.LocalAddr()), Remote: addrPort(h.tcp.RemoteAddr()),
		Owner: h.owner, RecvBuf: h.recvBuf,
	}
}

// makeGroup makes the link group of a first contact. On a client it also connects the first
// link.
func (h *handshake) makeGroup(a rendezvous.MakeGroup) rendezvous.Event {
	s := h.s
	if h.role == smc.Client {
		if err := h.path.failedMeanwhile(); err != nil {
			return answerOf(nil, err)
		}
	}
	g, err := s.driver.NewGroup(driver.GroupConfig{
		Role: h.role, PeerID: a.PeerID, LocalPeerID: s.peerIDNow(), Terms: a.Terms,
		LAN: h.host.lan, Owner: h.owner.UID, Ports: h.host.ports(a.Terms), MaxLinks: s.cfg.MaxLinks, MaxConns: s.cfg.MaxConns,
	})
	switch {
	case errors.Is(err, driver.ErrClosed):
		h.cause = err
		return rendezvous.Closed{Cause: err}
	case err != nil:
		return answerOf(nil, err)
	}
	h.fresh = g
	var peer *linkgroup.ConnParams
	if a.Peer != nil {
		p := h.firstParams(*a.Peer, a.Terms)
		peer = &p
		send, answer := h.path.clientPace(time.Now(), a.Terms)
		driver.Pace(g, send, answer)
	}
	var local linkgroup.ConnParams
	h.conn, local, err = g.Begin(h.connConfig(), peer)
	return answerOf(rendezvous.GroupMade{Local: endpoint(s.peerIDNow(), local), UDPPort: local.Link.UDPPort}, err)
}

// connectFirst connects the first link of a server's link group.
func (h *handshake) connectFirst(a rendezvous.ConnectFirst) error {
	h.path.peerIsOurs = a.Terms.PeerOurs()
	send, answer := h.path.serverPace(time.Now())
	driver.Pace(h.fresh, send, answer)
	return h.fresh.Connect(h.firstParams(a.Peer, a.Terms), a.Peer.PeerID, a.Terms)
}

// join adds the connection to an existing link group.
func (h *handshake) join(a rendezvous.JoinGroup) rendezvous.Event {
	w := driver.Demand{Role: h.role, Terms: a.Terms, PeerID: a.PeerID, GID: a.GID, MAC: a.MAC, VLAN: h.host.lan.Route.VLAN, Host: h.host.lan.Remote}
	if h.role == smc.Client {
		peer := h.peerParams(*a.Peer)
		if err := peer.Check(); err != nil {
			return answerOf(nil, err)
		}
		w.QPN = peer.Link.QPN
	}
	c, err := h.s.driver.Join(w, h.connConfig())
	if c == nil && err == nil {
		return rendezvous.NoGroup{}
	}
	h.conn = c
	return answerOf(rendezvous.Joined{}, err)
}

// awaitLLC returns the outcome of the LLC exchange as an event.
func (h *handshake) awaitLLC() {
	if h.fresh != nil {
		h.llc, h.path.tried = h.fresh.FirstContact(), true
	} else {
		h.llc = h.conn.Announced()
	}
}

func (h *handshake) llcOutcome(err error) rendezvous.Event {
	h.llc = nil
	var local linkgroup.ConnParams
	if err == nil && h.fresh == nil {
		local, err = h.conn.Local()
	}
	if err != nil {
		if h.path.failed(err) {
			h.turn.leave() // the others need not wait any more
		}
		return rendezvous.LLCFailed{Failure: failureOf(err)}
	}
	return rendezvous.LLCDone{Local: endpoint(h.s.peerIDNow(), local)}
}

// attach connects this end of the connection to the end of the peer.
func (h *handshake) attach(e wire.Endpoint) (wire.Endpoint, error) {
	local, err := h.conn.Attach(h.peerParams(e))
	return endpoint(h.s.peerIDNow(), local), err
}

// params and endpoint convert between CLC and the core.
func params(e wire.Endpoint) linkgroup.ConnParams {
	return linkgroup.ConnParams{
		Link: linkgroup.Endpoint{GID: e.GID, MAC: e.MAC, QPN: e.QPN, PSN: e.PSN, MTU: e.MTU},
		RKey: e.RMB.RKey, VAddr: e.RMB.Addr, Index: e.RMBEIndex, Token: e.AlertToken, SizeCode: e.RMBESize,
	}
}

// peerParams returns what ACCEPT or CONFIRM of the peer contains, and which host has sent it.
func (h *handshake) peerParams(e wire.Endpoint) linkgroup.ConnParams {
	p := params(e)
	p.From = addrPort(h.tcp.RemoteAddr()).Addr()
	return p
}

// firstParams returns peerParams and what the message contains only on a first contact.
func (h *handshake) firstParams(e wire.Endpoint, t *rendezvous.Terms) linkgroup.ConnParams {
	p := h.peerParams(e)
	p.Link.UDPPort = t.PeerUDPPort()
	return p
}

func endpoint(id smc.PeerID, p linkgroup.ConnParams) wire.Endpoint {
	return wire.Endpoint{
		PeerID: id, GID: p.Link.GID, MAC: p.Link.MAC, QPN: p.Link.QPN, PSN: p.Link.PSN, MTU: p.Link.MTU,
		RMB: smc.RToken{RKey: p.RKey, Addr: p.VAddr}, RMBEIndex: p.Index, AlertToken: p.Token, RMBESize: p.SizeCode,
	}
}
