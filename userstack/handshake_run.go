// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"smcr/smc"
	"smcr/userstack/internal/inside"
	"smcr/userstack/network"
	"smcr/userstack/rendezvous"
)

// Client runs the client's side of the rendezvous (RFC 7609, section 3.5) on a TCP
// connection, and returns the SMC-R connection, to which tcp belongs from then on. The peer
// must be known to speak SMC: any other peer would treat the messages of the rendezvous as
// data. [Stack.Dial] finds this out in the TCP handshake. The rendezvous ends when ctx ends.
//
// If the error is a [*DeclineError], the rendezvous sends no other message on tcp, and the
// program can use tcp for its data. After any other error, close tcp.
func (s *Stack) Client(ctx context.Context, tcp TCPConn) (*Conn, error) {
	return s.handshake(ctx, tcp, smc.Client, rendezvous.Config{})
}

// Server runs the server's side of the rendezvous on an accepted TCP connection. The peer
// must be known to speak SMC. Its results are those of [Stack.Client].
func (s *Stack) Server(ctx context.Context, tcp TCPConn) (*Conn, error) {
	return s.handshake(ctx, tcp, smc.Server, rendezvous.Config{})
}

// serverLook is Server for a peer that may not speak CLC: the machine looks at the first
// bytes before it reads them. If they are data, they stay unread, and the error is a
// *DeclineError made of notCLC. announced says that the peer announced SMC in the TCP handshake.
func (s *Stack) serverLook(ctx context.Context, tcp TCPConn, announced bool, notCLC rendezvous.Refusal) (*Conn, error) {
	return s.handshake(ctx, tcp, smc.Server, lookConfig(announced, notCLC))
}

func lookConfig(announced bool, notCLC rendezvous.Refusal) rendezvous.Config {
	return rendezvous.Config{Look: true, OptionSeen: announced, NotCLC: notCLC}
}

// handshake drives one side of the rendezvous on tcp, and counts how it ended.
func (s *Stack) handshake(ctx context.Context, tcp TCPConn, role smc.Role, conf rendezvous.Config) (*Conn, error) {
	return s.handshakeAt(ctx, tcp, role, conf, nil)
}

// handshakeAt is handshake for a connection that has a place until its PROPOSAL is there, or nil.
func (s *Stack) handshakeAt(ctx context.Context, tcp TCPConn, role smc.Role, conf rendezvous.Config, p *undecidedPlace) (*Conn, error) {
	if err := s.reg.enter(); err != nil {
		return nil, err
	}
	h := newHandshake(ctx, s, tcp, role, conf)
	h.mayWait, h.place = true, p
	_, c, err := h.run()
	return c, err
}

// run drives the machine to its end, and counts how that was. Unless it may wait, it returns where it would have to, and says for what.
func (h *handshake) run() (p pause, c *Conn, err error) {
	what := "a rendezvous as client"
	if h.role == smc.Server {
		what = "a rendezvous as server"
	}
	if perr := h.s.guard.Do(what, func() {
		if p = h.advance(); p == over {
			c, err = h.outcome()
		}
	}); perr != nil {
		h.end()
		h.giveUp()
		p, c, err = over, nil, fmt.Errorf("userstack: %w", perr)
	}
	if p != over {
		return p, nil, nil
	}
	defer h.s.reg.wg.Done()
	if d, ok := errors.AsType[*DeclineError](err); h.role == smc.Client && (err == nil || ok && d.Remote) {
		h.s.copies.answered(h.owner.UID, addrPort(h.tcp.RemoteAddr()))
	}
	if err != nil {
		h.s.account(h.role, 0, err)
		return over, nil, err
	}
	h.s.account(h.role, c.d.Group().Version(), nil)
	h.s.stats.HandshakeTime(h.role, time.Since(h.path.began))
	return over, c, nil
}

// advance drives the machine to its end, or until it has to wait and may not.
func (h *handshake) advance() pause {
	for len(h.todo) > 0 || h.m.State() != rendezvous.Over {
		if len(h.todo) == 0 {
			h.actions = h.m.TakeActions(h.actions[:0])
			h.todo = h.actions
		}
		var ev rendezvous.Event
		switch {
		case len(h.todo) > 0:
			if ev = h.carryOut(h.todo[0]); ev == later {
				return forOthers
			}
			h.todo = h.todo[1:]
		case h.mayWait:
			ev = h.next()
		default:
			var p pause
			if ev, p = h.come(); ev == nil {
				return p
			}
		}
		if ev != nil {
			h.m.Handle(time.Now(), ev)
		}
	}
	for _, a := range h.m.TakeActions(h.actions[:0]) {
		h.carryOut(a)
	}
	h.end()
	return over
}

// outcome converts the outcome of the machine to the results of the rendezvous.
func (h *handshake) outcome() (*Conn, error) {
	o := h.m.Outcome()
	switch {
	case o.Refused != nil:
		why := &DeclineError{Remote: o.Refused.Remote, Code: o.Refused.Code, Err: o.Refused.Err}
		if why.Remote {
			h.path.declined(why.Code)
		}
		return nil, why
	case h.cause != nil && errors.Is(o.Err, h.cause):
		return nil, h.cause
	case o.Err != nil:
		return nil, fmt.Errorf("userstack: %w", o.Err)
	}
	h.path.works()
	if h.fresh != nil && h.role == smc.Client {
		h.with = h.caller()
	}
	if h.with.Host.IsValid() {
		h.s.limit.meet(h.with)
	}
	h.conn.Start()
	if g := h.fresh; g != nil {
		h.s.log.Info("link group established", "lgr", g.Name(), "role", g.Role().String(), "remote", h.tcp.RemoteAddr(), "peer", g.PeerID())
	}
	return newConn(&h.s.stats, h.conn, h.tcp), nil
}

// giveUp ends what the rendezvous has made, after a panic.
func (h *handshake) giveUp() {
	switch {
	case h.fresh != nil:
		h.fresh.Drop(h.conn)
	case h.conn != nil:
		h.conn.Cancel()
	}
}

// carryOut carries out an action of the machine. It returns the answer if there is one
// immediately.
func (h *handshake) carryOut(a rendezvous.Action) rendezvous.Event {
	switch a := a.(type) {
	case rendezvous.StopReading:
		return h.stopReading()
	case rendezvous.WatchDecline:
		h.watching = polling{on: true, rarely: a.Rarely, since: time.Now()}
		return h.tcpState()
	case rendezvous.Version1:
		h.s.log.Debug("not version 2", "peer", a.PeerID, "err", &a.Why)
	case rendezvous.EndTurn:
		h.turn.leave()
	case rendezvous.AwaitLLC:
		h.awaitLLC()
	case rendezvous.RefuseConn:
		h.conn.Refuse(h.peerParams(a.Peer))
	case rendezvous.CancelConn:
		h.conn.Cancel()
	case rendezvous.AbortConn:
		h.conn.Abandon()
	case rendezvous.EndGroup:
		if h.fresh != nil {
			h.fresh.Drop(h.conn)
		}
	case rendezvous.PeerLostGroup:
		h.conn.Group().PeerLost(a.QPN, &DeclineError{Remote: true, Code: a.Why.Code})
	default:
		if ev := h.interrupted(); ev != nil {
			return ev
		}
		if !h.mayWait && takesTime(a) {
			return later
		}
		return h.answer(a)
	}
	return nil
}

// answer carries out an action that has an answer. It is not called after the rendezvous was
// interrupted.
func (h *handshake) answer(a rendezvous.Action) rendezvous.Event {
	switch a := a.(type) {
	case rendezvous.Look:
		h.look.on = true
		return nil
	case rendezvous.LetGo:
		return h.letGo()
	case rendezvous.Prepare:
		return answerOf(rendezvous.Prepared{}, h.prepare())
	case rendezvous.Send:
		return h.send(a.Message)
	case rendezvous.Admit:
		return h.admit()
	case rendezvous.Survey:
		host, err := h.survey(a.PeerGID)
		if err == errLater {
			return later
		}
		return answerOf(rendezvous.Surveyed{Host: host}, err)
	case rendezvous.FindPath:
		routed, err := h.s.routed(a.Local, a.PeerGID)
		return answerOf(rendezvous.PathFound{Routed: routed}, err)
	case rendezvous.AwaitTurn:
		h.s.identity(h.host.ports(a.Terms)[0])
		h.turn.of = rendezvous.Contact{Host: h.host.lan.Remote, PeerID: a.PeerID, GID: a.GID}
		return h.takeTurn()
	case rendezvous.JoinGroup:
		return h.join(a)
	case rendezvous.MakeGroup:
		return h.makeGroup(a)
	case rendezvous.ConnectFirst:
		return answerOf(rendezvous.Connected{}, h.connectFirst(a))
	case rendezvous.Attach:
		local, err := h.attach(a.Peer)
		return answerOf(rendezvous.Attached{Local: local}, err)
	}
	panic(fmt.Sprintf("userstack: the rendezvous asks for %T", a))
}

// watchEvery is the interval between two looks at the state of TCP after a DECLINE. Linux has
// no event for what the peer acknowledges, nor for what a program whose connection was let go
// does: letGoEvery is the first interval there.
const (
	watchEvery = time.Millisecond
	letGoEvery = 50 * time.Microsecond
)

// polling is a look at something again and again.
type polling struct {
	on     bool
	rarely bool // the more rarely, the longer it takes
	since  time.Time
}

// every returns the interval, which is least at first.
func (w *polling) every(least time.Duration) time.Duration {
	if !w.rarely {
		return least
	}
	return max(least, time.Since(w.since)/8)
}

// next waits for the next event.
func (h *handshake) next() rendezvous.Event {
	reads := h.read()
	if h.m.State() != rendezvous.Queueing {
		h.turn.busy = nil // the machine does not wait for a turn
	}
	// Messages of the peer are handled before other events.
	select {
	case r := <-reads:
		return h.wasRead(r)
	default:
	}
	select {
	case err := <-h.llc:
		return h.llcOutcome(err)
	default:
	}
	if h.llc != nil {
		h.s.driver.Attend()
	}
	select {
	case r := <-reads:
		return h.wasRead(r)
	case err := <-h.llc:
		return h.llcOutcome(err)
	case <-h.turn.busy:
		if ev := h.takeTurn(); ev != nil {
			return ev
		}
		return rendezvous.Tick{}
	case <-h.canceled:
		return h.interrupted()
	case <-h.s.ctx.Done():
		return h.interrupted()
	case <-h.wake():
		switch {
		case h.watches():
			return h.tcpState()
		case h.m.State() == rendezvous.LettingGo:
			if ev := h.letGo(); ev != nil {
				return ev
			}
		}
		return rendezvous.Tick{}
	}
}

// watches reports whether the machine waits for what becomes of a DECLINE.
func (h *handshake) watches() bool { return h.watching.on && h.m.State() == rendezvous.AwaitAck }

// letGo has the program let go. It returns nil if the program does not have its connection yet.
func (h *handshake) letGo() rendezvous.Event {
	has, err := h.tcp.(inside.Held).LetGo()
	switch {
	case err != nil:
		return answerOf(nil, err)
	case has:
		return rendezvous.LetGone{}
	case !h.mayWait:
		return later
	case !h.letting.on:
		h.letting = polling{on: true, rarely: true, since: time.Now()}
	}
	return nil
}

// wake returns a channel that is ready at the deadline of the machine, or when it is time to
// look at the state of TCP, or of the program. It is nil without any.
func (h *handshake) wake() <-chan time.Time {
	var d time.Duration
	switch at := h.m.Deadline(); {
	case h.watches():
		d = h.watching.every(watchEvery)
	case h.m.State() == rendezvous.LettingGo:
		d = min(h.letting.every(letGoEvery), max(0, time.Until(at)))
	case at.IsZero():
		return nil
	default:
		d = max(0, time.Until(at))
	}
	if h.timer == nil {
		h.timer = time.NewTimer(d)
	} else {
		h.timer.Reset(d)
	}
	return h.timer.C
}

// prepare prepares TCP for the messages.
func (h *handshake) prepare() (err error) {
	if err = hasPeer(h.tcp); err != nil {
		return err
	}
	switch c := h.tcp.(type) {
	case interface{ RecvBuf() int }: // who knows it already
		h.recvBuf = c.RecvBuf()
	case syscall.Conn:
		h.recvBuf = network.RecvBuf(c)
	}
	return nil
}

// hasPeer returns an error for a TCP connection that ended before anything was sent. A socket
// that was reset does not have the address of its peer any more.
func hasPeer(tcp TCPConn) error {
	if !addrPort(tcp.LocalAddr()).IsValid() || !addrPort(tcp.RemoteAddr()).IsValid() {
		return fmt.Errorf("TCP connection ended before the rendezvous: %w", syscall.ECONNRESET)
	}
	return nil
}
