// SPDX-License-Identifier: Apache-2.0

package stacktest

import (
	"context"
	"encoding"
	"errors"
	"fmt"
	"sync"
	"time"

	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack/simfabric"
	"smcr/userstack/wire"
)

// The times that Linux 6.12 waits in a rendezvous (net/smc/af_smc.c, smc_clc.h,
// smc_llc.h): for a CLC message, then for a DECLINE, for an LLC message, and as a client
// for CONFIRM LINK. The other numbers are those of its queue pairs and buffers.
const (
	linuxCLC          = 6 * time.Second
	linuxDecline      = time.Second
	linuxLLC          = 2 * time.Second
	linuxClientLLC    = 2 * linuxLLC
	linuxQPTimeout    = 15 // 134 ms
	linuxQPRetries    = 7
	linuxRecvs        = 64
	linuxSends        = 64
	linuxSlot         = 64      // bytes of a receive buffer: a message has 44 bytes
	linuxSendID       = 1 << 63 // marks the work requests of sends
	linuxRMB          = 64 << 10
	linuxTestLink     = 30 * time.Second
	linuxTestLinkWait = 2 * time.Second
)

// linuxMode is what one side uses after the rendezvous.
type linuxMode int

const (
	linuxDead linuxMode = iota // the program gets an error, or nothing
	linuxTCP
	linuxSMC
)

func (m linuxMode) String() string { return [...]string{"dead", "TCP", "SMC-R"}[m] }

// linuxPeer behaves like Linux in a rendezvous of version 1 with one device: it sends the
// same messages, waits as long for messages, and decides the same. Like Linux, it ignores
// the end of the TCP connection while the connection uses SMC-R.
type linuxPeer struct {
	dev  rdmaverbs.Device
	pd   rdmaverbs.PD
	cq   rdmaverbs.CQ
	wake chan struct{}
	stop chan struct{}
	done sync.WaitGroup
	id   smc.PeerID
	mac  smc.MAC
	gid  smc.GID
	note func(format string, args ...any)

	mu     sync.Mutex
	links  []*linuxLink
	served sync.Mutex // held while a link group is made, one at a time
	last   uint32
}

// linuxLink is a link group of one link.
type linuxLink struct {
	p       *linuxPeer
	client  bool
	peerID  smc.PeerID
	qp      rdmaverbs.QP
	mr      rdmaverbs.MR
	buf     []byte
	local   wire.Endpoint
	peerQPN smc.QPN

	// The fields below are guarded by p.mu.
	active, dead bool
	sent         uint64
	wantAdd      bool
	got          map[string]wire.LLC
	news         chan struct{} // closed and replaced when something changes
	conns, all   []*linuxConn  // those that use SMC-R; and all, also those in a rendezvous
	lastMessage  time.Time
}

// linuxConn is a connection on a link.
type linuxConn struct {
	tcp   *simfabric.TCPConn
	mr    rdmaverbs.MR
	rmb   []byte
	token uint32
	dead  chan struct{} // closed when the kernel has ended the connection
	once  sync.Once
}

func (c *linuxConn) kill() {
	c.once.Do(func() {
		close(c.dead)
		_ = c.tcp.SetLinger(0)
		_ = c.tcp.Close()
	})
}

func newLinuxPeer(h *simfabric.Host, note func(string, ...any)) (*linuxPeer, error) {
	p := &linuxPeer{wake: make(chan struct{}, 1), stop: make(chan struct{}), note: note, last: 100}
	list, err := h.Provider().Devices(context.Background())
	if err != nil {
		return nil, err
	}
	if p.dev, err = h.Provider().Open(context.Background(), list[0].Name); err != nil {
		return nil, err
	}
	if p.pd, err = p.dev.AllocPD(); err != nil {
		return nil, err
	}
	if p.cq, err = p.dev.CreateCQ(4096, func() {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}); err != nil {
		return nil, err
	}
	port, err := p.dev.Port(1)
	if err != nil {
		return nil, err
	}
	gids, err := p.dev.GIDs(1)
	if err != nil {
		return nil, err
	}
	copy(p.mac[:], port.HWAddr)
	p.gid = smc.GID(gids[0].GID)
	p.id = smc.NewPeerID(4711, p.mac)
	p.done.Go(p.run)
	return p, nil
}

// close releases everything.
func (p *linuxPeer) close() error {
	p.mu.Lock()
	links := p.links
	p.mu.Unlock()
	for _, l := range links {
		l.fail("end of the test")
	}
	close(p.stop)
	p.done.Wait()
	for _, l := range links {
		_ = l.qp.Close()
		_ = l.mr.Close()
	}
	return errors.Join(p.cq.Close(), p.pd.Close(), p.dev.Close())
}

// run processes completions.
func (p *linuxPeer) run() {
	var wc [16]rdmaverbs.WC
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		for n := p.cq.Poll(wc[:]); n > 0; n = p.cq.Poll(wc[:]) {
			for i := range wc[:n] {
				p.complete(&wc[i])
			}
		}
		select {
		case <-p.wake:
		case <-tick.C:
			p.test()
		case <-p.stop:
			return
		}
	}
}

// test sends TEST LINK over idle links. A link without an answer fails.
func (p *linuxPeer) test() {
	p.mu.Lock()
	links := append([]*linuxLink(nil), p.links...)
	p.mu.Unlock()
	for _, l := range links {
		p.mu.Lock()
		active, idle := l.active, time.Since(l.lastMessage)
		p.mu.Unlock()
		switch {
		case !active:
		case idle > linuxTestLink+linuxTestLinkWait:
			l.fail("no answer to TEST LINK")
		case idle > linuxTestLink:
			l.send(wire.TestLink{})
		}
	}
}

func (p *linuxPeer) complete(wc *rdmaverbs.WC) {
	p.mu.Lock()
	var l *linuxLink
	for _, x := range p.links {
		if x.qp.QPN() == wc.QPN {
			l = x
		}
	}
	p.mu.Unlock()
	switch {
	case l == nil:
	case wc.Status != rdmaverbs.StatusSuccess:
		l.fail(wc.Status.String())
	case wc.ID&linuxSendID == 0:
		slot := int(wc.ID)
		msg := append([]byte(nil), l.buf[slot*linuxSlot:][:wc.Len]...)
		_, _ = l.qp.PostRecv(l.recv(slot))
		p.mu.Lock()
		l.lastMessage = time.Now()
		p.mu.Unlock()
		if m, err := wire.ParseLLC(msg); err == nil {
			l.receive(m)
		} else if m, err := wire.ParseCDC(msg); err == nil {
			l.cdc(m)
		}
	}
}

func (l *linuxLink) recv(slot int) rdmaverbs.RecvWR {
	return rdmaverbs.RecvWR{ID: uint64(slot), SG: rdmaverbs.SGE{MR: l.mr, Off: slot * linuxSlot, Len: linuxSlot}}
}

// fail ends the link, and with it the group and its connections.
func (l *linuxLink) fail(why string) {
	p := l.p
	p.mu.Lock()
	if l.dead {
		p.mu.Unlock()
		return
	}
	l.dead, l.active = true, false
	conns := l.conns
	l.changed()
	p.mu.Unlock()
	p.note("linux: link %#x has failed: %s", l.qp.QPN(), why)
	_ = l.qp.ToError()
	for _, c := range conns {
		c.kill()
	}
}

// changed wakes goroutines that wait. p.mu is held.
func (l *linuxLink) changed() {
	close(l.news)
	l.news = make(chan struct{})
}

// cdc ignores everything but an abnormal close.
func (l *linuxLink) cdc(m wire.CDC) {
	l.p.mu.Lock()
	conns := append([]*linuxConn(nil), l.all...)
	l.p.mu.Unlock()
	for _, c := range conns {
		if c.token == m.Token && m.State&wire.ConnAbnormalClose != 0 {
			l.p.note("linux: the peer aborts connection %d", m.Token)
			c.kill()
		}
	}
}

func llcKey(t wire.LLCType, reply bool) string { return fmt.Sprint(t, reply) }

// receive answers a message, or keeps it for the goroutine that waits for it.
func (l *linuxLink) receive(m wire.LLC) {
	l.p.note("linux: received %v reply %v", m.LLCType(), m.IsReply())
	switch m := m.(type) {
	case wire.ConfirmRKey:
		if !m.Reply {
			m.Reply = true
			l.send(m)
			return
		}
	case wire.DeleteRKey:
		if !m.Reply {
			m.Reply = true
			l.send(m)
		}
		return
	case wire.TestLink:
		if !m.Reply {
			m.Reply = true
			l.send(m)
		}
		return
	case wire.DeleteLink:
		if m.All {
			l.fail("DELETE LINK of all links")
		}
		return
	case wire.AddLink:
		l.p.mu.Lock()
		wanted := l.wantAdd
		l.p.mu.Unlock()
		if !m.Reply && !wanted {
			l.rejectAdd(m)
			return
		}
	}
	l.p.mu.Lock()
	l.got[llcKey(m.LLCType(), m.IsReply())] = m
	l.changed()
	l.p.mu.Unlock()
}

func (l *linuxLink) rejectAdd(m wire.AddLink) {
	m.Reply, m.Rejected, m.Reason = true, true, 1
	l.send(m)
}

func (l *linuxLink) send(m encoding.BinaryAppender) {
	raw, err := m.AppendBinary(nil)
	if err != nil {
		panic(err)
	}
	l.p.mu.Lock()
	l.sent++
	id := l.sent | linuxSendID
	l.p.mu.Unlock()
	_, _ = l.qp.PostSend(rdmaverbs.SendWR{ID: id, Op: rdmaverbs.OpSend, Flags: rdmaverbs.Signaled | rdmaverbs.Inline, InlineData: raw})
}

// wait waits for a message. It returns nil if none arrives, or if the link of a server
// fails (smc_llc_wait).
func (l *linuxLink) wait(t wire.LLCType, reply bool, d time.Duration) wire.LLC {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		l.p.mu.Lock()
		key := llcKey(t, reply)
		m, dead, news := l.got[key], l.dead, l.news
		delete(l.got, key)
		l.p.mu.Unlock()
		if m != nil {
			return m
		}
		if dead {
			return nil
		}
		select {
		case <-news:
		case <-timer.C:
			return nil
		}
	}
}

// newLink makes a link with a queue pair in INIT.
func (p *linuxPeer) newLink(client bool) (*linuxLink, error) {
	l := &linuxLink{p: p, client: client, lastMessage: time.Now(), got: map[string]wire.LLC{}, news: make(chan struct{})}
	l.buf = make([]byte, linuxRecvs*linuxSlot)
	var err error
	if l.mr, err = p.pd.RegisterMR(l.buf, rdmaverbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	if l.qp, err = p.pd.CreateQP(rdmaverbs.QPInit{
		SendCQ: p.cq, RecvCQ: p.cq, MaxSend: linuxSends, MaxRecv: linuxRecvs, Port: 1,
		Access: rdmaverbs.AccessLocalWrite | rdmaverbs.AccessRemoteWrite,
	}); err != nil {
		return nil, err
	}
	for i := range linuxRecvs {
		if _, err := l.qp.PostRecv(l.recv(i)); err != nil {
			return nil, err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	l.local = wire.Endpoint{PeerID: p.id, GID: p.gid, MAC: p.mac, QPN: smc.QPN(l.qp.QPN()), PSN: smc.PSN(p.last), MTU: smc.MTU(smc.MTU1024)}
	p.links = append(p.links, l)
	return l, nil
}

func (l *linuxLink) path(e wire.Endpoint) rdmaverbs.PathInfo {
	return rdmaverbs.PathInfo{
		DGID: e.GID, DMAC: append([]byte(nil), e.MAC[:]...), DQPN: uint32(e.QPN), RQPSN: uint32(e.PSN), SQPSN: uint32(l.local.PSN),
		PathMTU: smc.MTU(min(e.MTU, l.local.MTU)), HopLimit: 1, Timeout: linuxQPTimeout, RetryCnt: linuxQPRetries, RNRRetry: 7, MinRNR: 5, MaxRdAtom: 1, MaxDestRd: 1,
	}
}

// find returns the link of an existing group, or nil.
func (p *linuxPeer) find(client bool, peer smc.PeerID, qpn smc.QPN) *linuxLink {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.links {
		if l.client == client && l.active && l.peerID == peer && (qpn == 0 || qpn == l.peerQPN) {
			return l
		}
	}
	return nil
}

// newConn makes a connection with its own RMB, and returns the endpoint for the CLC
// message.
func (l *linuxLink) newConn(tcp *simfabric.TCPConn) (*linuxConn, wire.Endpoint, error) {
	c := &linuxConn{tcp: tcp, dead: make(chan struct{}), rmb: make([]byte, linuxRMB)}
	var err error
	if c.mr, err = l.p.pd.RegisterMR(c.rmb, rdmaverbs.AccessLocalWrite|rdmaverbs.AccessRemoteWrite); err != nil {
		return nil, wire.Endpoint{}, err
	}
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	l.p.last++
	e := l.local
	e.RMB = smc.RToken{RKey: smc.RKey(c.mr.RKey()), Addr: c.mr.Addr()}
	e.RMBEIndex, e.AlertToken, e.RMBESize = 1, l.p.last, smc.SizeCodeFor(linuxRMB)
	c.token = e.AlertToken
	l.all = append(l.all, c)
	return c, e, nil
}

// use makes the connection use SMC-R. If the link has failed meanwhile, the connection
// ends.
func (l *linuxLink) use(c *linuxConn) linuxMode {
	l.p.mu.Lock()
	l.conns = append(l.conns, c)
	dead := l.dead
	l.p.mu.Unlock()
	if dead {
		c.kill()
	}
	return linuxSMC
}

// confirmRKey tells the peer the RMB of a connection.
func (l *linuxLink) confirmRKey(e wire.Endpoint) bool {
	l.send(wire.ConfirmRKey{This: e.RMB})
	m, ok := l.wait(wire.LLCConfirmRKey, true, linuxLLC).(wire.ConfirmRKey)
	return ok && !m.Negative
}
