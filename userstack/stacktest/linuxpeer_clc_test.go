// SPDX-License-Identifier: Apache-2.0

package stacktest

import (
	"encoding"
	"errors"
	"io"
	"os"
	"time"

	"smcr/smc"
	"smcr/userstack/internal/bedtest"
	"smcr/userstack/simfabric"
	"smcr/userstack/wire"
)

// linuxRecv reads a CLC message like smc_clc_wait_msg. It returns nil without an error if
// no message arrives.
func linuxRecv(tcp *simfabric.TCPConn, d time.Duration) (wire.CLC, error) {
	_ = tcp.SetReadDeadline(time.Now().Add(d))
	defer tcp.SetReadDeadline(time.Time{}) //nolint:errcheck // it cannot fail in memory
	buf := make([]byte, wire.MaxCLCLen)
	_, err := io.ReadFull(tcp, buf[:wire.HeaderLen])
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	h, err := wire.ParseHeader(buf)
	if err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(tcp, buf[wire.HeaderLen:h.Length]); err != nil {
		return nil, err
	}
	return wire.ParseCLC(buf[:h.Length])
}

func linuxSend(tcp *simfabric.TCPConn, m encoding.BinaryAppender) error {
	raw, err := m.AppendBinary(nil)
	if err != nil {
		return err
	}
	_, err = tcp.Write(raw)
	return err
}

// decline sends DECLINE and falls back.
func (p *linuxPeer) decline(tcp *simfabric.TCPConn, d smc.Diagnosis) linuxMode {
	p.note("linux: declines, %v", d)
	if linuxSend(tcp, wire.Decline{PeerID: p.id, Diagnosis: d, OutOfSync: d == smc.DiagSync}) != nil {
		return linuxDead
	}
	return linuxTCP
}

// orDecline is called after no LLC message has arrived: it waits for the DECLINE of the
// peer, and calls quiet if there is none.
func (p *linuxPeer) orDecline(tcp *simfabric.TCPConn, quiet func() linuxMode) linuxMode {
	m, err := linuxRecv(tcp, linuxDecline)
	if err != nil {
		p.note("linux: in place of DECLINE: %v", err)
		return linuxDead
	}
	if m == nil {
		return quiet()
	}
	if _, ok := m.(wire.Decline); ok {
		return linuxTCP
	}
	return linuxDead
}

// connect does what smc_connect does.
func (p *linuxPeer) connect(tcp *simfabric.TCPConn) (linuxMode, *linuxConn) {
	if linuxSend(tcp, wire.Proposal{PeerID: p.id, GID: p.gid, MAC: p.mac, IPv4: bedtest.Prefix(1, 0).Masked(), Growth: make([]byte, wire.ProposalGrowthLinux)}) != nil {
		return linuxDead, nil
	}
	m, err := linuxRecv(tcp, linuxCLC)
	acc, ok := m.(wire.Accept)
	if _, declined := m.(wire.Decline); declined {
		return linuxTCP, nil
	}
	if err != nil || !ok {
		return linuxDead, nil // ETIMEDOUT, EPROTO
	}
	p.served.Lock()
	defer p.served.Unlock()
	if !acc.FirstContact {
		l := p.find(true, acc.PeerID, acc.QPN)
		if l == nil {
			return p.decline(tcp, smc.DiagSync), nil
		}
		c, e, err := l.newConn(tcp)
		if err != nil {
			return p.decline(tcp, smc.DiagMem), nil
		}
		if !l.confirmRKey(e) {
			return p.decline(tcp, smc.DiagRegisterBuffers), c
		}
		if linuxSend(tcp, wire.Confirm{Endpoint: e}) != nil {
			return linuxDead, c
		}
		return l.use(c), c
	}
	l, err := p.newLink(true)
	if err != nil {
		return p.decline(tcp, smc.DiagMem), nil
	}
	c, e, err := l.newConn(tcp)
	if err != nil {
		return p.decline(tcp, smc.DiagMem), nil
	}
	l.peerID, l.peerQPN = acc.PeerID, acc.QPN
	if err := l.qp.ToRTR(l.path(acc.Endpoint)); err != nil {
		return p.decline(tcp, smc.DiagReadyLink), c
	}
	if linuxSend(tcp, wire.Confirm{FirstContact: true, Endpoint: e}) != nil {
		l.fail("no CONFIRM")
		return linuxDead, c
	}
	mode := l.confirmAsClient(tcp, acc.Endpoint, c)
	if mode != linuxSMC {
		l.fail("the first contact ends as " + mode.String())
	}
	return mode, c
}

// confirmAsClient does what smcr_clnt_conf_first_link does.
func (l *linuxLink) confirmAsClient(tcp *simfabric.TCPConn, peer wire.Endpoint, c *linuxConn) linuxMode {
	p := l.p
	m, ok := l.wait(wire.LLCConfirmLink, false, linuxClientLLC).(wire.ConfirmLink)
	if !ok {
		return p.orDecline(tcp, func() linuxMode { return p.decline(tcp, smc.DiagTimeoutConfLink) })
	}
	if l.qp.ToRTS(l.path(peer)) != nil {
		return p.decline(tcp, smc.DiagReadyLink)
	}
	p.mu.Lock()
	l.wantAdd, l.active = true, !l.dead
	p.mu.Unlock()
	l.send(wire.ConfirmLink{Reply: true, NoEyecatcher: true, MAC: p.mac, GID: p.gid, QPN: l.local.QPN, LinkNum: m.LinkNum, LinkUserID: 1, MaxLinks: 2, MaxConns: 255})
	add, ok := l.wait(wire.LLCAddLink, false, linuxLLC).(wire.AddLink)
	p.mu.Lock()
	l.wantAdd = false
	p.mu.Unlock()
	if !ok {
		return p.orDecline(tcp, func() linuxMode { return l.use(c) })
	}
	l.rejectAdd(add)
	return l.use(c)
}

// accept does what smc_listen_work does.
func (p *linuxPeer) accept(tcp *simfabric.TCPConn) (linuxMode, *linuxConn) {
	m, err := linuxRecv(tcp, linuxCLC)
	prop, ok := m.(wire.Proposal)
	if _, declined := m.(wire.Decline); declined {
		return linuxTCP, nil
	}
	if err != nil || !ok {
		return linuxDead, nil
	}
	p.served.Lock()
	defer p.served.Unlock()
	if l := p.find(false, prop.PeerID, 0); l != nil {
		c, e, err := l.newConn(tcp)
		if err != nil {
			return p.decline(tcp, smc.DiagMem), nil
		}
		if !l.confirmRKey(e) {
			return p.decline(tcp, smc.DiagRegisterBuffers), c
		}
		_, mode := p.awaitConfirm(tcp, wire.Accept{Endpoint: e}, l)
		if mode == linuxSMC {
			mode = l.use(c)
		}
		return mode, c
	}
	l, err := p.newLink(false)
	if err != nil {
		return p.decline(tcp, smc.DiagMem), nil
	}
	c, e, err := l.newConn(tcp)
	if err != nil {
		return p.decline(tcp, smc.DiagMem), nil
	}
	conf, mode := p.awaitConfirm(tcp, wire.Accept{FirstContact: true, Endpoint: e}, l)
	if mode == linuxSMC {
		l.peerID, l.peerQPN = conf.PeerID, conf.QPN
		mode = l.confirmAsServer(tcp, conf.Endpoint, c)
	}
	if mode != linuxSMC {
		l.fail("the first contact ends as " + mode.String())
	}
	return mode, c
}

// awaitConfirm sends ACCEPT and reads CONFIRM. The mode is linuxSMC if CONFIRM has
// arrived.
func (p *linuxPeer) awaitConfirm(tcp *simfabric.TCPConn, acc wire.Accept, l *linuxLink) (wire.Confirm, linuxMode) {
	if linuxSend(tcp, acc) != nil {
		return wire.Confirm{}, linuxDead
	}
	m, err := linuxRecv(tcp, linuxCLC)
	if d, ok := m.(wire.Decline); ok {
		if d.OutOfSync {
			l.fail("out of sync")
		}
		return wire.Confirm{}, linuxTCP
	}
	conf, ok := m.(wire.Confirm)
	if err != nil || !ok {
		return conf, linuxDead
	}
	return conf, linuxSMC
}

// confirmAsServer does what smcr_serv_conf_first_link does.
func (l *linuxLink) confirmAsServer(tcp *simfabric.TCPConn, peer wire.Endpoint, c *linuxConn) linuxMode {
	p := l.p
	if l.qp.ToRTR(l.path(peer)) != nil || l.qp.ToRTS(l.path(peer)) != nil {
		return p.decline(tcp, smc.DiagReadyLink)
	}
	l.send(wire.ConfirmLink{NoEyecatcher: true, MAC: p.mac, GID: p.gid, QPN: l.local.QPN, LinkNum: 1, LinkUserID: 1, MaxLinks: 2, MaxConns: 255})
	if l.wait(wire.LLCConfirmLink, true, linuxLLC) == nil {
		return p.orDecline(tcp, func() linuxMode { return p.decline(tcp, smc.DiagTimeoutConfLink) })
	}
	p.mu.Lock()
	l.active = !l.dead
	p.mu.Unlock()
	l.send(wire.AddLink{MAC: p.mac, GID: p.gid, QPN: l.local.QPN + 1, LinkNum: 2, MTU: l.local.MTU, PSN: 9})
	l.wait(wire.LLCAddLink, true, linuxLLC)
	return l.use(c)
}
