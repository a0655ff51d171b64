// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"smcr/guard"
	"smcr/smc"
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

// Guard implements inside.Stack.
func (i insideStack) Guard() *guard.Guard { return &i.s.guard }

// Network implements inside.Stack.
func (i insideStack) Network() network.Network { return i.s.net }

// NoAnswer implements inside.Stack.
func (i insideStack) NoAnswer(uid uint32, remote netip.AddrPort, err error) error {
	if !errors.Is(err, ErrNoAnswer) || i.s.ctx.Err() != nil {
		return nil
	}
	i.s.copies.noAnswer(time.Now(), uid, remote, err)
	return copied()
}

// Quiet implements inside.Stack.
func (i insideStack) Quiet(uid uint32, remote netip.AddrPort) time.Duration {
	return i.s.copies.left(time.Now(), uid, remote)
}

// noCLC is the reason for TCP if the peer does not send CLC messages.
func noCLC() rendezvous.Refusal {
	return rendezvous.Refusal{Code: ReasonPeerNoSMC, Err: errors.New("no CLC message")}
}

// Agree implements inside.Stack.
func (i insideStack) Agree(ctx context.Context, role smc.Role, tcp inside.TCPConn, done func(*Conn, error)) {
	conf := rendezvous.Config{}
	if role == smc.Server {
		conf = lookConfig(true, noCLC())
	}
	_, conf.Held = tcp.(inside.Held)
	i.s.attend(ctx, tcp, role, conf, done)
}

// StaysTCP implements inside.Stack.
func (i insideStack) StaysTCP(o inside.Owner, cookie uint64, client bool, err error) {
	i.s.staysTCP(o, cookie, client, err)
}

// ListAlso implements inside.Stack.
func (i insideStack) ListAlso(o inside.Others) { i.s.tcpSockets.ListAlso(o) }

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

// Ended implements inside.Carriage.
func (k carriage) Ended() bool { return k.c.Carried.Ended() }

// Sending implements inside.Carriage.
func (k carriage) Sending() bool { return k.c.Out.Sending() }

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
