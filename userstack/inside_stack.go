// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"smcr/guard"
	"smcr/nl"
	"smcr/smc"
	"smcr/stats"
	"smcr/userstack/driver"
	"smcr/userstack/engine"
	"smcr/userstack/internal/inside"
	"smcr/userstack/network"
	"smcr/userstack/rendezvous"
)

// insideStack shows a stack to the packages that carry the connections of other programs. It
// implements inside.Stack.
type insideStack struct{ s *Stack }

var _ inside.Stack[*Conn] = insideStack{}

// Log implements inside.Stack.
func (i insideStack) Log() *slog.Logger { return i.s.log }

// Guard implements inside.Stack.
func (i insideStack) Guard() *guard.Guard { return &i.s.guard }

// Stats implements inside.Stack.
func (i insideStack) Stats() *stats.Collector { return &i.s.stats }

// Network implements inside.Stack.
func (i insideStack) Network() network.Network { return i.s.net }

// Option implements inside.Stack.
func (i insideStack) Option() network.OptionMarker { return i.s.opt.marker }

// Closed implements inside.Stack.
func (i insideStack) Closed() bool { return i.s.ctx.Err() != nil }

// CanAnnounce implements inside.Stack.
func (i insideStack) CanAnnounce(local, remote netip.Addr) error {
	return i.s.canAnnounce(local, remote)
}

// Copies implements inside.Stack.
func (i insideStack) Copies(uid uint32, remote netip.AddrPort) error {
	if i.s.copies.known(time.Now(), uid, remote) {
		return copied()
	}
	return nil
}

// SYNACK implements inside.Stack.
func (i insideStack) SYNACK(fd int, remote netip.AddrPort) error {
	if i.s.synAck(fd, remote) {
		return copied()
	}
	return nil
}

// NoAnswer implements inside.Stack.
func (i insideStack) NoAnswer(uid uint32, remote netip.AddrPort, err error) error {
	i.s.copies.noAnswer(time.Now(), uid, remote, err)
	return copied()
}

// Quiet implements inside.Stack.
func (i insideStack) Quiet(uid uint32, remote netip.AddrPort) time.Duration {
	return i.s.copies.left(time.Now(), uid, remote)
}

// Assumed implements inside.Stack.
func (i insideStack) Assumed(remote netip.Addr) bool { return i.s.opt.assumed(remote) }

// NotAnnounced implements inside.Stack.
func (i insideStack) NotAnnounced() error { return i.s.opt.notAnnounced() }

// noCLC is the reason for TCP if the peer does not send CLC messages.
func noCLC() rendezvous.Refusal {
	return rendezvous.Refusal{Code: ReasonPeerNoSMC, Err: errors.New("no CLC message")}
}

// ServeUnsure implements inside.Stack.
func (i insideStack) ServeUnsure(ctx context.Context, tcp inside.TCPConn, takeOver func() error) (*Conn, error) {
	return i.s.serverLook(ctx, tcp, noCLC(), nil, takeOver)
}

// Decline implements inside.Stack.
func (i insideStack) Decline(ctx context.Context, tcp inside.TCPConn, why error) error {
	code := smc.DiagMem
	if d, ok := errors.AsType[*DeclineError](why); ok {
		code = d.Code
	}
	_, err := i.s.serverLook(ctx, tcp, noCLC(), &rendezvous.Refusal{Code: code, Err: why}, nil)
	return err
}

// StaysTCP implements inside.Stack.
func (i insideStack) StaysTCP(o inside.Owner, fd int, client bool, err error) (reason, peer uint32) {
	return i.s.staysTCP(o, network.Cookie(fd), client, err)
}

// StaysTCPOf implements inside.Stack.
func (i insideStack) StaysTCPOf(o inside.Owner, cookie uint64, client bool, err error) (reason, peer uint32) {
	return i.s.staysTCP(o, cookie, client, err)
}

// ListAlso implements inside.Stack.
func (i insideStack) ListAlso(o inside.Others) { i.s.tcpSockets.ListAlso(o) }

// CountFallback implements inside.Stack.
func (i insideStack) CountFallback(client bool, code smc.Diagnosis) {
	i.s.count(sideOf(client), nl.ConnFallback{Reason: uint32(code)})
}

// Note implements inside.Stack.
func (i insideStack) Note(cookie uint64, t inside.TCPSocket) { i.s.tcpSockets.Note(cookie, t) }

// Busy implements inside.Stack.
func (i insideStack) Busy() bool {
	return i.s.driver.Conns() > 0
}

// OnQuiet implements inside.Stack.
func (i insideStack) OnQuiet(f func()) { i.s.driver.OnQuiet(f) }

// Carriage implements inside.Stack.
func (i insideStack) Carriage(c *Conn) inside.Carriage { return carriage{c.d} }

// carriage shows a connection to the packages that carry the bytes of programs. It implements
// inside.Carriage.
type carriage struct{ c *driver.Conn }

// Loop implements inside.Carriage.
func (k carriage) Loop() *engine.Loop { return k.c.Carried.Loop() }

// Attach implements inside.Carriage.
func (k carriage) Attach(sock *engine.Socket) { k.c.Carried.Attach(sock) }

// Detach implements inside.Carriage.
func (k carriage) Detach() { k.c.Carried.Detach() }

// Ride implements inside.Carriage.
func (k carriage) Ride(back func()) bool { return k.c.Carried.Ride(back) }

// Recall implements inside.Carriage.
func (k carriage) Recall() { k.c.Carried.Recall() }

// AfterDone implements inside.Carriage.
func (k carriage) AfterDone(f func()) { k.c.End.AfterDone(f) }

// KeepLinkAlive implements inside.Carriage.
func (k carriage) KeepLinkAlive(idle time.Duration) { k.c.SetKeepAlive(idle) }

// Bytes implements inside.Carriage.
func (k carriage) Bytes() uint64 { return k.c.Bytes() }

// ResetReason implements inside.Carriage.
func (k carriage) ResetReason() string {
	select {
	case <-k.c.End.Done():
		return resetReason(k.c.End.Err())
	default:
		return ""
	}
}
