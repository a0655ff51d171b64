// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// Conn is one TCP connection on a link group: our RMBE, the peer's RMBE, the
// cursors into both, and the state.
type Conn struct {
	// Data is free for the driver.
	Data any

	g     *Group
	link  *Link // that we write over
	onto  *Link // that the last message of the peer came over
	token uint32
	state smc.ConnState
	err   error // why the connection was reset or aborted

	first    bool // it is that of the first contact
	ready    bool // ActConnReady was sent
	attached bool
	canceled bool
	released bool
	freed    bool
	closedAt bool // ActConnClosed was sent

	// Receive side. Positions count the bytes of the stream.
	rmb      *rmb
	elem     int
	mem      []byte // the element
	rx       ring
	rprod    uint64 // written by the peer
	rcons    uint64 // read by the application
	rconf    uint64 // told to the peer
	rseq     uint16 // last CDC message processed (SR of RFC 7609, 4.6.1)
	rflags   wire.ProducerFlags
	rstate   wire.StateFlags
	woken    bool // ActWakeRead was sent and RecvData not called since
	stash    wire.CDC
	stashed  bool
	early    uint16 // last CDC message before Attach that a validation may speak of
	checking bool   // failover validation waits for messages of the old link
	checkSeq uint16
	checkAt  time.Time
	moved    bool // the peer has moved the connection
	strayAt  time.Time

	// Urgent data received.
	urgent   uint64 // position after the urgent byte, 0 if there was none
	ubyte    byte
	uvalid   bool // ubyte was not taken
	upending bool // the peer has announced another one
	inline   bool // the next one stays in the stream
	uinline  bool // this one does

	// Send side.
	ssize    int    // send buffer: how much may wait to be confirmed
	schunk   int    // size of a chunk (see conn_send.go)
	head     *Chunk // first of those in use
	tail     *Chunk // last one
	spare    *Chunk // that follows it, lent to the producer
	lent     int    // bytes lent
	placed   bool   // Placed was called, and Produced is to come
	rtoken   *rtoken
	peer     ConnParams
	tx       ring
	prep     uint64 // placed by the application
	sent     uint64 // written to the peer
	replay   uint64 // what sent was before failover
	fin      uint64 // write completed: the memory is free again
	pcons    uint64 // read by the peer
	seq      uint16 // last CDC message sent
	finSeq   uint16 // last CDC message completed (SS of RFC 7609, 4.6.1)
	inflight int    // CDC messages not completed
	tflags   wire.ProducerFlags
	tstate   wire.StateFlags // sent
	tdone    wire.StateFlags // sent and completed
	full     bool            // the driver waits for ActWakeWrite
	utx      uint64          // position after the urgent byte to be confirmed, 0 if none
	utxNext  uint64          // the one after it
	lost     lostByte        // (see conn_lost.go)
	corked   bool            // small pieces wait for more
	noDelay  bool            // not even for the message before
	push     bool            // but not now

	// What is to be sent.
	update bool // the consumer cursor, or a message again
	verify bool // failover validation

	// Closing.
	wrShut, appClosed bool
	aborting          bool
	closeAt           time.Time // stranding timer
	graceAt, tcpEndAt time.Time
	urgentAt, takenAt time.Time
	corkAt            time.Time
	keepAt            time.Time
	keepIdle          time.Duration
	active            time.Time // last message sent or received
	tcpReset          bool

	named  *Link     // client: the link that ACCEPT named, which CONFIRM repeats
	next   *Link     // that the connection is on its way to (rebalance)
	moveAt time.Time // when it gets there

	waitOn             *Link
	waitPrev, waitNext *Conn
}

// maxInflight is how many CDC messages of one connection may be outstanding.
// What comes meanwhile is gathered in the next.
const maxInflight = 2

// NewConn begins a connection: an RMBE of size 16 KiB << rmbeCode, an alert
// token, a send buffer of sendBuf bytes. ActConnReady says when the peer knows
// the RMB; it may be queued already when NewConn returns. The first
// connection of a group comes between [Group.FirstLink] and
// [Group.ConnectFirst], all others after the first contact.
func (g *Group) NewConn(now time.Time, rmbeCode smc.SizeCode, sendBuf int) (*Conn, error) {
	return g.NewConnOf(now, 0, rmbeCode, sendBuf)
}

// NewConnOf is NewConn for a connection of an owner, a user of the host. Owners share
// no RMB: what a peer is told of an RMB for one says nothing of another's memory. Nor
// do they share the limit of lost RMBEs, which one could use up for all.
func (g *Group) NewConnOf(now time.Time, owner uint32, rmbeCode smc.SizeCode, sendBuf int) (*Conn, error) {
	if rmbeCode > maxSizeCode || sendBuf <= 0 {
		return nil, fmt.Errorf("%w: RMBE size code %d, send buffer of %d bytes", ErrInvalidParams, rmbeCode, sendBuf)
	}
	g.now = now
	switch {
	case g.phase >= phaseDying:
		return nil, ErrGroupDead
	case g.phase < phaseLinked || g.phase != phaseOpen && len(g.conns) > 0:
		return nil, ErrSequence
	case len(g.conns) >= g.cfg.MaxConns || g.worn() || g.lost[owner] > maxLost:
		return nil, ErrFull
	}
	l := g.bestLink(nil)
	if g.phase != phaseOpen {
		l = g.links[0]
	}
	if l == nil {
		return nil, ErrNoLink
	}
	r, i, err := g.takeElement(now, owner, rmbeCode)
	if err != nil {
		return nil, err
	}
	c := &Conn{g: g, first: g.phase != phaseOpen, link: l, state: smc.StateInit, rmb: r, elem: i, mem: r.mem0(i), ssize: sendBuf, schunk: chunkFor(sendBuf, g.cfg.SendChunk)}
	for c.token == 0 || g.conns[c.token] != nil {
		c.token = g.env.Random()
	}
	c.initRing()
	g.conns[c.token] = c
	g.clear(timerIdle)
	l.conns++
	if g.phase != phaseOpen {
		r.state = rmbKnown // by CLC (RFC 7609, section 3.5.1)
	}
	if r.state == rmbKnown {
		c.setReady(nil)
	} else {
		r.waiting = append(r.waiting, c)
		g.set(timerRKeyWait, now.Add(g.cfg.Timers.LLCStart))
		g.settle(now)
	}
	return c, nil
}

// initRing lays the element out.
func (c *Conn) initRing() {
	c.rx = newRing(len(c.mem), c.g.eye)
	if c.g.eye {
		copy(c.mem, eyeCatcher[:])
	}
}

func (c *Conn) setReady(err error) {
	if !c.ready && !c.canceled {
		c.ready = true
		c.g.act(Action{Kind: ActConnReady, Conn: c, Err: err})
	}
}

// Local returns what ACCEPT or CONFIRM say about our side. A client takes it
// after [Conn.Attach] on a subsequent contact, because CONFIRM names the link
// that the server chose: a Linux server looks for the RKey of CONFIRM on its own
// link. Which link we write over is our own choice all the same (RFC 7609,
// section 2.3).
func (c *Conn) Local() ConnParams {
	l := c.link
	if c.named != nil && c.named.state == smc.LinkActive {
		l = c.named
	}
	t := c.rmb.at[l.slot]
	return ConnParams{
		Link: l.local, RKey: t.RKey, VAddr: t.Addr,
		Index: uint8(c.elem + 1), Token: c.token, SizeCode: c.rmb.code,
	}
}

// Attach takes what the peer's ACCEPT or CONFIRM says and opens the
// connection; messages that came before are applied. Another connection
// which uses the same RMBE or alert token of the peer is reset, because the
// peer has given it up (RFC 7609, section 4.4.2). The host that has told of it
// must be the one that tells now, or that of the first contact, which has proved
// that it is the peer: otherwise it is ErrNotItsOwn, and nothing changes.
func (c *Conn) Attach(now time.Time, peer ConnParams) error {
	g := c.g
	g.now = now
	switch {
	case g.phase >= phaseDying:
		return ErrGroupDead
	case c.attached || c.canceled:
		return ErrSequence
	case peer.Index == 0 || peer.Token == 0 || peer.SizeCode > maxSizeCode:
		return fmt.Errorf("%w: RMBE index %d, alert token %#x, size code %d", ErrInvalidParams, peer.Index, peer.Token, peer.SizeCode)
	}
	on, t, err := g.peerRMB(peer, c.first)
	if err != nil {
		return err
	}
	if !t.on(c.link) {
		l := g.linkWith(t)
		if l == nil {
			return fmt.Errorf("%w: %s on any active link", ErrUnknownRKey, peer.RKey)
		}
		c.setLink(l)
	}
	others := g.connsSorted()
	for _, o := range others {
		if o.sharesElement(c, t, peer) && peer.From != o.peer.From && peer.From != g.cfg.PeerHost {
			return fmt.Errorf("%w: element %d, alert token %#x: %s says so, and %s said so before", ErrNotItsOwn, peer.Index, peer.Token, peer.From, o.peer.From)
		}
	}
	for _, o := range others {
		if o.sharesElement(c, t, peer) {
			// Expected where we have said C: the peer's last message, over
			// RoCE, may arrive after what its next connection says over TCP.
			log := g.log.Warn
			if o.tstate&wire.ConnClosed != 0 {
				log = g.log.Debug
			}
			log("peer reused an RMB element", "token", o.token)
			o.evict()
		}
	}
	c.rtoken, c.peer, c.attached = t, peer, true
	t.conns++
	c.state = smc.StateActive
	c.tx = newRing(peer.SizeCode.Bytes(), g.peerEye)
	if g.cfg.Role == smc.Client && g.phase == phaseOpen {
		c.named = on
	}
	if c.checking {
		c.awaitOld(now)
	}
	if on == nil {
		c.awaitMove(now)
	}
	if c.stashed {
		c.stashed = false
		c.recvCDC(now, c.stash)
	}
	c.transmit()
	g.settle(now)
	return nil
}

// redundant says that a link other than on is active.
func (g *Group) redundant(on *Link) bool {
	for _, l := range g.links {
		if l != on && l.state == smc.LinkActive {
			return g.opened
		}
	}
	return false
}

// sharesElement says that c, another connection, is attached with the element or the
// alert token that the peer names for o.
func (c *Conn) sharesElement(o *Conn, t *rtoken, peer ConnParams) bool {
	return c != o && c.attached && (c.peer.Token == peer.Token || c.rtoken == t && overlap(c.peer, peer))
}

// overlap says whether two elements of one RMB share bytes.
func overlap(a, b ConnParams) bool {
	as, bs := uint64(a.SizeCode.Bytes()), uint64(b.SizeCode.Bytes())
	ao, bo := as*uint64(a.Index-1), bs*uint64(b.Index-1)
	return ao < bo+bs && bo < ao+as
}

// Cancel ends a connection whose handshake failed. Nothing is sent and no
// action follows. The RMBE rests for a while in case the peer thinks that the
// connection is open.
func (c *Conn) Cancel(now time.Time) {
	if c.canceled || c.state == smc.StateClosed && c.closedAt {
		return
	}
	g := c.g
	g.now = now
	c.canceled, c.ready, c.released = true, true, true
	if c.state != smc.StateClosed {
		c.leave()
	}
	c.free(g.now.Add(g.cfg.Timers.AbortWait), false)
	g.settle(now)
}

// Refuse tells the peer, whose CONFIRM said peer, that a connection which could
// not be attached is over; [Conn.Cancel] follows. It is for peers that count on
// SMC-R from their CONFIRM on and do not look at TCP any more: Linux. The alert
// token of a connection that the peer has is none of that CONFIRM, which then
// need not be the peer's.
func (c *Conn) Refuse(now time.Time, peer ConnParams) {
	g := c.g
	l := c.link
	if l.state != smc.LinkActive || !l.qpOpen {
		l = g.bestLink(nil)
	}
	if g.phase != phaseOpen || l == nil || c.attached || c.canceled || peer.Token == 0 {
		return
	}
	for _, o := range g.conns {
		if o.attached && o.peer.Token == peer.Token {
			return
		}
	}
	g.now = now
	var it llcItem
	if _, err := (wire.CDC{Seq: 1, Token: peer.Token, State: wire.ConnAbnormalClose}).AppendBinary(it.msg[:0]); err != nil {
		panic("linkgroup: cannot encode a CDC message: " + err.Error())
	}
	l.queueLLC(&it)
	g.settle(now)
}

// Release says that the driver holds no slice of the connection any more. It
// is called once, after [ActConnClosed]; the memory of the send buffer and of
// the RMBE is given back then.
func (c *Conn) Release() {
	c.released = true
	c.maybeFree()
}

// leave takes the connection out of the group. Its memory stays.
func (c *Conn) leave() {
	g := c.g
	c.state = smc.StateClosed
	c.unbound()
	c.closeAt, c.graceAt, c.checkAt = time.Time{}, time.Time{}, time.Time{}
	c.urgentAt, c.corkAt, c.keepAt = time.Time{}, time.Time{}, time.Time{}
	c.forget()
	if g.conns[c.token] == c {
		delete(g.conns, c.token)
	}
	c.link.conns--
	if c.waitOn != nil {
		c.waitOn.unqueue(c)
	}
	if len(g.conns) == 0 && g.phase == phaseOpen && g.cfg.Timers.Idle > 0 {
		g.set(timerIdle, g.now.Add(g.cfg.Timers.Idle))
	}
	if c.rtoken != nil {
		c.rtoken.conns--
		c.rtoken = nil
	}
	for i, o := range c.rmb.waiting {
		if o == c {
			c.rmb.waiting = append(c.rmb.waiting[:i], c.rmb.waiting[i+1:]...)
			break
		}
	}
}

// closed ends the connection for good.
func (c *Conn) closed(err error, lost bool) {
	if c.state == smc.StateClosed {
		return
	}
	open := c.attached && c.g.opened
	c.leave()
	c.lostElem(lost)
	if c.err == nil && err != nil {
		c.err = err
	}
	if !open {
		return // the handshake fails; Cancel follows
	}
	c.wakeAll()
	c.closedAt = true
	c.g.act(Action{Kind: ActConnClosed, Conn: c, Err: err})
}

func (c *Conn) lostElem(lost bool) {
	if lost && !c.freed {
		e := &c.rmb.elems[c.elem]
		if !e.lost {
			e.lost = true
			c.g.lose(c.rmb)
		}
	}
}

func (c *Conn) maybeFree() {
	if c.state == smc.StateClosed && c.released && c.inflight == 0 {
		c.free(time.Time{}, false)
	}
}

func (c *Conn) free(notBefore time.Time, lost bool) {
	if c.freed || c.inflight > 0 {
		return
	}
	c.freed = true
	c.freeChunks()
	c.g.putElement(c.rmb, c.elem, notBefore, lost)
	c.mem = nil
}

// Token returns our alert token.
func (c *Conn) Token() uint32 { return c.token }

// State returns the state.
func (c *Conn) State() smc.ConnState { return c.state }

// Link returns the link that the connection writes over.
func (c *Conn) Link() *Link { return c.link }

// Group returns the link group.
func (c *Conn) Group() *Group { return c.g }

// ConnInfo is what the diagnosis of a socket shows.
type ConnInfo struct {
	Token uint32
	// SendBuf, RMBE and PeerRMBE are sizes in bytes.
	SendBuf, RMBE, PeerRMBE int
	// RxProd and RxCons are the cursors of our RMBE, TxProd and TxCons
	// those of the peer's.
	RxProd, RxCons, TxProd, TxCons wire.Cursor
	RxFlags, TxFlags               wire.ProducerFlags
	RxState, TxState               wire.StateFlags
	// TxPrep, TxSent and TxFin are the positions in our send buffer of what
	// the application has placed, what was written and what is confirmed.
	TxPrep, TxSent, TxFin wire.Cursor
}

// Info returns sizes, cursors and flags.
func (c *Conn) Info() ConnInfo {
	in := ConnInfo{
		Token: c.token, SendBuf: c.ssize, RMBE: len(c.mem),
		RxProd: c.rx.cursor(c.rprod), RxCons: c.rx.cursor(c.rcons),
		RxFlags: c.rflags, TxFlags: c.tflags, RxState: c.rstate, TxState: c.tstate,
	}
	if c.attached {
		in.PeerRMBE = c.peer.SizeCode.Bytes()
		in.TxProd, in.TxCons = c.tx.cursor(c.sent), c.tx.cursor(c.pcons)
	}
	if !c.freed {
		s := ring{size: c.ssize}
		in.TxPrep, in.TxSent, in.TxFin = s.cursor(c.prep), s.cursor(c.sent), s.cursor(c.fin)
	}
	return in
}

// intact checks for an overlay of our RMBE (RFC 7609, section 4.4.1).
func (c *Conn) intact() bool {
	return c.rx.start == 0 || bytes.Equal(c.mem[:eyeCatcherLen], eyeCatcher[:])
}

// sortConns orders connections by alert token, so that what is done to all
// of them does not depend on the order of a map.
func sortConns(list []*Conn) {
	slices.SortFunc(list, func(a, b *Conn) int { return cmp.Compare(a.token, b.token) })
}
