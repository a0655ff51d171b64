// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"time"

	"smcr/userstack/wire"
)

type Group struct{}
type LinkState uint8
type Type uint8
type Link struct{ Data any }
type Conn struct{ Data any }

const (
	LinkInactive   LinkState = 1
	LinkActivating LinkState = 2
	LinkActive     LinkState = 3
)
const (
	TypeNone            Type = 0
	TypeSingle          Type = 1
	TypeSymmetric       Type = 2
	TypeAsymmetricPeer  Type = 3
	TypeAsymmetricLocal Type = 4
)

func (l *Link) ID() uint8        { return 0 }
func (l *Link) UID() uint32      { return 0 }
func (l *Link) PeerUID() uint32  { return 0 }
func (l *Link) Local() Endpoint  { return Endpoint{} }
func (l *Link) Peer() Endpoint   { return Endpoint{} }
func (l *Link) Dev() Device      { return Device{} }
func (l *Link) State() LinkState { return 0 }
func (l *Link) ConnCount() int   { return 0 }

func New(cfg Config, env Env, now time.Time) *Group                    { return &Group{} }
func (g *Group) TakeActions(buf []Action) []Action                     { return buf[:0] }
func (g *Group) Received(now time.Time, l *Link, msg []byte)           {}
func (g *Group) Sent(now time.Time, l *Link, token uint64)             {}
func (g *Group) LinkFailed(now time.Time, l *Link, err error)          {}
func (g *Group) DeviceUp(now time.Time, d Device)                      {}
func (g *Group) DeviceDown(now time.Time, devID int)                   {}
func (g *Group) Deadline() (time.Time, bool)                           { return time.Time{}, false }
func (g *Group) Tick(now time.Time)                                    {}
func (g *Group) Terminate(now time.Time, reason wire.DeleteLinkReason) {}
func (g *Group) FirstLink(now time.Time) (Endpoint, error)             { return Endpoint{}, ErrSequence }
func (g *Group) ConnectFirst(now time.Time, peer Endpoint) error       { return ErrSequence }
func (g *Group) NewConn(now time.Time, rmbeCode uint8, sendBuf int) (*Conn, error) {
	return nil, ErrSequence
}
func (g *Group) CanAccept() bool                                      { return false }
func (g *Group) HasLink(peer wire.GID, mac wire.MAC, qpn uint32) bool { return false }
func (g *Group) ID() [4]byte                                          { return [4]byte{} }
func (g *Group) Role() Role                                           { return 0 }
func (g *Group) Type() Type                                           { return 0 }
func (g *Group) Conns() int                                           { return 0 }
func (g *Group) Links() []*Link                                       { return nil }
func (g *Group) LocalPeerID() wire.PeerID                             { return wire.PeerID{} }
func (g *Group) PeerID() wire.PeerID                                  { return wire.PeerID{} }
func (g *Group) VLAN() uint16                                         { return 0 }
func (g *Group) MaxLinks() int                                        { return 0 }
func (g *Group) MaxConns() int                                        { return 0 }

type ConnInfo struct {
	Token                          uint32
	SendBuf, RMBE, PeerRMBE        int
	RxProd, RxCons, TxProd, TxCons wire.Cursor
	RxFlags, TxFlags               wire.ProducerFlags
	RxState, TxState               wire.ConnState
	TxPrep, TxSent, TxFin          wire.Cursor
}

func (c *Conn) Local() ConnParams                           { return ConnParams{} }
func (c *Conn) Attach(now time.Time, peer ConnParams) error { return ErrSequence }
func (c *Conn) Cancel(now time.Time)                        {}
func (c *Conn) Release()                                    {}
func (c *Conn) SendSpace() (a, b []byte)                    { return nil, nil }
func (c *Conn) Produced(now time.Time, n int)               {}
func (c *Conn) RecvData() (a, b []byte)                     { return nil, nil }
func (c *Conn) Consumed(now time.Time, n int)               {}
func (c *Conn) CloseWrite(now time.Time)                    {}
func (c *Conn) Close(now time.Time)                         {}
func (c *Conn) Abort(now time.Time)                         {}
func (c *Conn) TCPClosed(now time.Time, reset bool)         {}
func (c *Conn) ReadErr() error                              { return nil }
func (c *Conn) WriteErr() error                             { return nil }
func (c *Conn) Token() uint32                               { return 0 }
func (c *Conn) State() State                                { return StateInit }
func (c *Conn) Link() *Link                                 { return nil }
func (c *Conn) Info() ConnInfo                              { return ConnInfo{} }
func (c *Conn) SendHandle() any                             { return nil }
