// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"context"
	"math"
	"net/netip"
	"time"

	"github.com/mdlayher/netlink"
)

// A Learner is a [Control] of a stack that remembers with whom SMC was of no use.
type Learner interface {
	// Learnt returns what keeps connections TCP for a time, in no order.
	Learnt(ctx context.Context) ([]Learnt, error)
}

var _ Learner = (*Client)(nil)

// LearnerOf returns a Control as a [Learner]. The error matches ErrNotSupported if it is none.
func LearnerOf(c Control) (Learner, error) {
	if b, ok := c.(Backend); ok {
		c = b.Control
	}
	if l, ok := c.(Learner); ok {
		return l, nil
	}
	return nil, ErrNotSupported
}

// A Learnt is a peer with which connections stay TCP for a time, without a try. A [Server] shows a user only what
// concerns that user.
type Learnt struct {
	// Everyone means that it concerns the connections of all users, otherwise those of UID.
	Everyone bool
	UID      uint32
	// Local is the address of this host that the connections have, or the zero Addr for any.
	Local netip.Addr
	// Remote is the peer; port 0 stands for all ports.
	Remote netip.AddrPort
	// Why is a peer diagnosis code: see package smc.
	Why uint32
	// Peer is the reason of the peer, if that has declined and has given one, or 0.
	Peer uint32
	// Left is how long yet, in milliseconds at the most exact. With 0, the next connection tries SMC again.
	Left time.Duration
}

func (l *Learnt) encode(ae *attrEncoder) {
	boolAttr(ae, attrLearntEveryone, l.Everyone)
	ae.Uint32(attrLearntUID, l.UID)
	endAttr(ae, attrLearntLocal, netip.AddrPortFrom(l.Local, 0))
	endAttr(ae, attrLearntRemote, l.Remote)
	ae.Uint32(attrLearntWhy, l.Why)
	ae.Uint32(attrLearntPeer, l.Peer)
	ae.Uint64(attrLearntLeft, uint64(max(l.Left, 0).Milliseconds()))
}

func (l *Learnt) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrLearntEveryone:
			l.Everyone = number8(ad) != 0
		case attrLearntUID:
			l.UID = number32(ad)
		case attrLearntLocal:
			l.Local = end(ad).Addr()
		case attrLearntRemote:
			l.Remote = end(ad)
		case attrLearntWhy:
			l.Why = number32(ad)
		case attrLearntPeer:
			l.Peer = number32(ad)
		case attrLearntLeft:
			const most = math.MaxInt64 / uint64(time.Millisecond)
			l.Left = time.Duration(min(number(ad), most)) * time.Millisecond
		}
	}
	return ad.Err()
}

func (s *Server) dumpLearnt(ctx context.Context, req *request, out *replies) error {
	ctl, err := LearnerOf(s.ctl)
	if err != nil {
		return err
	}
	all, err := ctl.Learnt(ctx)
	for i := range all {
		if err == nil && s.concerns(req.peer, &all[i]) {
			err = out.row(req.cmd, attrOwnLearnt, &all[i])
		}
	}
	return err
}

// Learnt implements [Learner].
func (c *Client) Learnt(ctx context.Context) (all []Learnt, err error) {
	const op = "list what was learnt of peers"
	err = c.genl(ctx, op, OwnFamilyName, cmdOwnGetLearnt, netlink.Dump, nil, answer{
		begin: func() { all = nil },
		parse: func(_ uint8, attrs []byte) error {
			var l Learnt
			ok, err := unnestAttr(attrs, attrOwnLearnt, &l)
			if ok && err == nil {
				all = append(all, l)
			}
			return err
		},
	})
	return all, ownFamily(ctx, c, op, err)
}
