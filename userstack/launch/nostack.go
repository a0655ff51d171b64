// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"net/netip"

	"smcr/userstack/broker"
)

// noStack is a session that has ended before anything used it.
type noStack struct{ over chan struct{} }

// NoStack returns a Broker for a program that starts before its stack: its connections are TCP until
// Config.Redial opens a session.
func NoStack() Broker {
	b := &noStack{make(chan struct{})}
	close(b.over)
	return b
}

func (b *noStack) Listen(context.Context, int) error { return broker.ErrServiceGone }

func (b *noStack) Connect(int, broker.ConnectRequest) (*broker.ClientConn, error) {
	return nil, broker.ErrServiceGone
}

func (b *noStack) Accept(int, netip.AddrPort, netip.AddrPort) (*broker.ClientConn, error) {
	return nil, broker.ErrServiceGone
}

func (b *noStack) Done() <-chan struct{}       { return b.over }
func (b *noStack) Dead() <-chan struct{}       { return b.over }
func (b *noStack) HandedOver() <-chan struct{} { return nil }
func (b *noStack) Leave()                      {}
func (b *noStack) PID() int                    { return 0 }
func (b *noStack) ByOption() bool              { return false }
func (b *noStack) Local() bool                 { return false }
func (b *noStack) Note([]broker.Note) error    { return broker.ErrServiceGone }
