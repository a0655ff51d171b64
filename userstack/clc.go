// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"smcr/smc"
	"smcr/userstack/internal/inside"
	"smcr/userstack/linkgroup"
	"smcr/userstack/network"
	"smcr/userstack/wire"
)

// TCPConn is the TCP connection that [Stack.Client] and [Stack.Server] run the
// rendezvous on. *net.TCPConn is one.
type TCPConn interface {
	net.Conn
	// SetLinger(0) makes Close send RST.
	SetLinger(sec int) error
}

// clc speaks the CLC messages of one rendezvous. They share the TCP
// connection with the data of a connection that falls back, so exactly the
// bytes of a message are read.
type clc struct {
	s     *Stack
	tcp   TCPConn
	owner inside.Owner
	v2    bool // DECLINE has the layout of version 2
	recv  int  // what the program has asked for with SO_RCVBUF, in bytes
	buf   [wire.MaxCLCLen]byte
	gate  network.Gate // nil: nobody else can send on tcp
	took  int          // bytes read from tcp

	// firm is set while the peer may count on SMC-R without having told: the
	// end of the context then does not end the wait for it.
	firm atomic.Bool

	// What the rendezvous has made so far: a link group of a first contact, and
	// the connection. They end with it if it panics.
	fresh *group
	conn  *Conn
}

// lateGrace is how long a read goes on whose time is over. What came in time
// counts, also where this process stood still meanwhile and its timers fired
// first.
const lateGrace = 50 * time.Millisecond

// rendezvous runs one side of the CLC exchange on tcp and counts how it ended.
func (s *Stack) rendezvous(ctx context.Context, tcp TCPConn, side smc.Role, run func(*clc, context.Context) (*Conn, error)) (*Conn, error) {
	if err := s.enter(); err != nil {
		return nil, err
	}
	defer s.wg.Done()
	h := &clc{s: s, tcp: tcp, owner: inside.OwnerFrom(ctx)}
	var c *Conn
	var err error
	if perr := s.guard.Do("a rendezvous as "+side.String(), func() {
		if err = hasPeer(tcp); err != nil {
			return
		}
		if h.gate, err = s.gateOf(ctx, tcp); err != nil {
			return
		}
		if sc, ok := tcp.(syscall.Conn); ok {
			h.recv = network.RecvBuf(sc, s.tcpRcv)
		}
		release := h.bind(ctx)
		defer release()
		c, err = run(h, ctx)
		err = h.declined(err)
	}); perr != nil {
		h.giveUp()
		c, err = nil, fmt.Errorf("userstack: %w", perr)
	}
	s.account(side, c, err)
	if err != nil {
		return nil, err
	}
	return c, nil
}

// hasPeer returns an error for a TCP connection that has ended before anything
// was said: a socket that was reset has no peer's address any more.
func hasPeer(tcp TCPConn) error {
	if !addrPort(tcp.LocalAddr()).IsValid() || !addrPort(tcp.RemoteAddr()).IsValid() {
		return fmt.Errorf("userstack: TCP connection ended before the rendezvous: %w", syscall.ECONNRESET)
	}
	return nil
}

// giveUp ends what a rendezvous has made that panicked.
func (h *clc) giveUp() {
	switch {
	case h.fresh != nil:
		h.fresh.drop(h.conn)
	case h.conn != nil:
		h.conn.g.cancel(h.conn)
	}
}

// bind makes ctx and the stack's end interrupt reads and writes on tcp. The
// function it returns ends that and clears the deadline.
func (h *clc) bind(ctx context.Context) (release func()) {
	cut := func() { _ = h.tcp.SetDeadline(time.Unix(1, 0)) }
	stop1 := context.AfterFunc(ctx, func() {
		if !h.firm.Load() {
			cut()
		}
	})
	stop2 := context.AfterFunc(h.s.ctx, cut)
	return func() {
		ok1, ok2 := stop1(), stop2()
		if ok1 && ok2 {
			_ = h.tcp.SetDeadline(time.Time{})
		}
	}
}

// route finds the way to the peer. RoCE would go past IPsec (RFC 7609, section
// 5.5).
func (h *clc) route(local, remote netip.AddrPort) (network.Route, error) {
	rt, err := h.s.net.Route(local.Addr(), remote.Addr())
	if err != nil {
		return network.Route{}, &DeclineError{Code: smc.DiagNoRoute, Err: err}
	}
	secured, err := h.s.net.Secured(local, remote)
	if err != nil {
		return network.Route{}, &DeclineError{Code: smc.DiagInternal, Err: err}
	}
	if secured {
		return network.Route{}, &DeclineError{Code: smc.DiagIPsec, Err: fmt.Errorf("an IPsec policy of this host covers %s and %s", local, remote)}
	}
	return rt, nil
}

// read reads one message within d.
func (h *clc) read(ctx context.Context, d time.Duration) (wire.CLC, error) {
	if err := h.extend(ctx, d); err != nil {
		return nil, err
	}
	extended := false
	return h.readMsg(readerFunc(func(b []byte) (int, error) {
		n, err := h.tcp.Read(b)
		if errors.Is(err, os.ErrDeadlineExceeded) && !extended {
			extended = true
			if h.extend(ctx, lateGrace) == nil {
				n, err = h.tcp.Read(b)
			}
		}
		return n, err
	}))
}

// extend gives reads on tcp until d from now, unless the rendezvous is to end.
func (h *clc) extend(ctx context.Context, d time.Duration) error {
	if err := h.s.interrupted(ctx); err != nil {
		return err
	}
	_ = h.tcp.SetReadDeadline(time.Now().Add(d))
	return h.s.interrupted(ctx)
}

type readerFunc func([]byte) (int, error)

// Read implements io.Reader.
func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

func (h *clc) readMsg(r io.Reader) (wire.CLC, error) {
	// Part of a message must not be taken for none: its rest would be data.
	n, err := io.ReadFull(r, h.buf[:wire.HeaderLen])
	h.took += n
	if err != nil && n > 0 {
		return nil, fmt.Errorf("%w: read CLC header: %w", errCLC, err)
	} else if err != nil {
		return nil, fmt.Errorf("userstack: read CLC header: %w", err)
	}
	hd, err := wire.ParseHeader(h.buf[:wire.HeaderLen])
	if err != nil {
		return nil, fmt.Errorf("%w: the peer did not send a CLC message: %w", errCLC, err)
	}
	n, err = io.ReadFull(r, h.buf[wire.HeaderLen:hd.Length])
	h.took += n
	if err == io.EOF {
		return nil, fmt.Errorf("%w: read %s: %w", errCLC, hd.Type, io.ErrUnexpectedEOF)
	} else if err != nil {
		return nil, fmt.Errorf("%w: read %s: %w", errCLC, hd.Type, err)
	}
	m, err := wire.ParseCLC(h.buf[:hd.Length])
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errCLC, err)
	}
	return m, nil
}

// errCLC means that the peer sent something else than the CLC messages that may
// come. The TCP connection ends: what follows cannot be told from data (RFC 7609,
// appendix C.6).
var errCLC = errors.New("userstack: protocol error")

func (h *clc) write(m wire.CLC) error {
	b, err := m.AppendBinary(nil)
	if err != nil {
		return fmt.Errorf("userstack: %w", err)
	}
	_ = h.tcp.SetWriteDeadline(time.Now().Add(clcTimeout))
	if err := h.send(b, m.CLCType() == wire.TypeDecline); err != nil {
		return fmt.Errorf("userstack: send %s: %w", m.CLCType(), err)
	}
	return nil
}

// decline tells the peer that the connection continues as TCP, and returns
// the reason. If the peer cannot be told, or nobody wants the connection any
// more, it is unusable and the returned error is not a *DeclineError.
func (h *clc) decline(ctx context.Context, cause error) error {
	if err := h.s.interrupted(ctx); err != nil {
		return err
	}
	d := declineFor(cause)
	m := wire.Decline{PeerID: h.s.peerIDNow(), Diagnosis: d.Code, OutOfSync: d.Code == smc.DiagSync}
	if h.v2 {
		m.Version, m.OSType = wire.Version2, smc.OSLinux
	}
	if err := h.write(m); err != nil {
		return err
	}
	return d
}

// crossWait is how long a DECLINE that may meet another one may be under way.
const crossWait = 500 * time.Millisecond

// declineFirst is decline in the LLC part of a first contact, where the peer may
// decline at the same time: each would then take the other's DECLINE for data.
// TCP goes on only if the peer's has ours soon, and none comes from there for as
// long as linger says.
func (h *clc) declineFirst(ctx context.Context, cause error, linger time.Duration) error {
	err := h.decline(ctx, cause)
	var d *DeclineError
	if !errors.As(err, &d) {
		return err
	}
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		unacked, first := probeTCP(h.tcp)
		hd, perr := wire.ParseHeader(first)
		switch took := time.Since(begin); {
		case perr == nil && hd.Type == wire.TypeDecline:
			return fmt.Errorf("userstack: both sides declined: %v", d)
		case len(first) >= wire.HeaderLen, !unacked && took >= linger:
			return d
		case unacked && took >= crossWait:
			return fmt.Errorf("userstack: the peer did not acknowledge the DECLINE: %v", d)
		}
		if err := h.s.interrupted(ctx); err != nil {
			return err
		}
	}
}

// A tcpProber tells whether the peer's TCP has yet to acknowledge anything, and
// what can be read, which it leaves there: a CLC header's worth.
type tcpProber interface {
	Probe() (unacked bool, first []byte)
}

// probeTCP is Probe of any TCP connection. What cannot tell is taken to be
// acknowledged.
func probeTCP(tcp TCPConn) (unacked bool, first []byte) {
	switch c := tcp.(type) {
	case tcpProber:
		return c.Probe()
	case syscall.Conn:
		return probeSocket(c)
	}
	return false, nil
}

// declineWait is how long a client whose link failed in a first contact waits
// for the server to notice. The server declines at once; if both did, each would
// take the other's DECLINE for data.
const declineWait = 2 * time.Second

// watchDecline waits for the outcome of an LLC exchange while listening for
// a DECLINE, which the peer may send until data flows (RFC 7609, appendix
// C.2). The end of the TCP stream is none: a peer that is through with the
// exchange first may have sent its data, and closed, before the last message of
// the exchange is processed here. The group's own timers bound the wait then.
// After a failure it listens on for patience.
func (h *clc) watchDecline(ctx context.Context, outcome <-chan error, patience time.Duration) error {
	type got struct {
		m   wire.CLC
		err error
	}
	ch := make(chan got, 1)
	_ = h.tcp.SetReadDeadline(time.Time{})
	if err := h.s.interrupted(ctx); err != nil {
		return err
	}
	go func() {
		var g got
		if err := h.s.guard.Do("reading a CLC message", func() { g.m, g.err = h.readMsg(h.tcp) }); err != nil {
			g = got{nil, fmt.Errorf("%w: %w", errCLC, err)}
		}
		ch <- g
	}()
	h.s.attend()
	select {
	case err := <-outcome:
		until := time.Unix(1, 0)
		if err != nil {
			until = time.Now().Add(lateGrace)
		}
		if err != nil && patience > 0 && !errors.Is(err, linkgroup.ErrNoFallback) {
			until = time.Now().Add(patience)
		}
		_ = h.tcp.SetReadDeadline(until)
		if err := h.s.interrupted(ctx); err != nil {
			_ = h.tcp.SetReadDeadline(time.Unix(1, 0))
		}
		if g := <-ch; g.m != nil {
			if d, ok := g.m.(wire.Decline); ok {
				return &DeclineError{Remote: true, Code: d.Diagnosis}
			}
			return fmt.Errorf("%w: unexpected %s", errCLC, g.m.CLCType())
		} else if errors.Is(g.err, errCLC) {
			return g.err
		}
		return err
	case g := <-ch:
		if errors.Is(g.err, io.EOF) {
			select {
			case err := <-outcome:
				return err
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-h.s.ctx.Done():
				return ErrStackClosed
			}
		}
		if g.err != nil {
			return g.err
		}
		if d, ok := g.m.(wire.Decline); ok {
			return &DeclineError{Remote: true, Code: d.Diagnosis}
		}
		return fmt.Errorf("%w: unexpected %s", errCLC, g.m.CLCType())
	}
}

// interrupted returns why a rendezvous must end now, if it must.
func (s *Stack) interrupted(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s.ctx.Err() != nil {
		return ErrStackClosed
	}
	return nil
}

func (s *Stack) peerIDNow() smc.PeerID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peerID
}

// addrPort returns the address and port of a.
//
// It is the zero AddrPort for nil, which package net has for a socket that has
// ended, and for an address that is not of IP.
func addrPort(a net.Addr) netip.AddrPort {
	if a == nil {
		return netip.AddrPort{}
	}
	if t, ok := a.(*net.TCPAddr); ok {
		ap := t.AddrPort()
		return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	ap, _ := netip.ParseAddrPort(a.String())
	return ap
}

// params and endpoint convert between CLC and the core.
func params(e wire.Endpoint) linkgroup.ConnParams {
	return linkgroup.ConnParams{
		Link: linkgroup.Endpoint{GID: e.GID, MAC: e.MAC, QPN: e.QPN, PSN: e.PSN, MTU: e.MTU},
		RKey: e.RMB.RKey, VAddr: e.RMB.Addr, Index: e.RMBEIndex, Token: e.AlertToken, SizeCode: e.RMBESize,
	}
}

// peerParams is what the peer's ACCEPT or CONFIRM says, and who says so.
func (h *clc) peerParams(e wire.Endpoint) linkgroup.ConnParams {
	p := params(e)
	p.From = addrPort(h.tcp.RemoteAddr()).Addr()
	return p
}

func endpoint(id smc.PeerID, p linkgroup.ConnParams) wire.Endpoint {
	return wire.Endpoint{
		PeerID: id, GID: p.Link.GID, MAC: p.Link.MAC, QPN: p.Link.QPN, PSN: p.Link.PSN, MTU: p.Link.MTU,
		RMB: smc.RToken{RKey: p.RKey, Addr: p.VAddr}, RMBEIndex: p.Index, AlertToken: p.Token, RMBESize: p.SizeCode,
	}
}

// wait waits for an outcome of the core, which bounds it by its own timers;
// ctx and the stack's end only shorten it.
func (s *Stack) wait(ctx context.Context, ch <-chan error) error {
	s.attend()
	t := time.NewTimer(30 * time.Second)
	defer t.Stop()
	select {
	case err := <-ch:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.ctx.Done():
		return ErrStackClosed
	case <-t.C:
		return errors.New("userstack: internal: no outcome of an LLC exchange")
	}
}
