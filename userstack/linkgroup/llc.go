// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"fmt"
	"slices"

	"smcr/smc"
	"smcr/userstack/wire"
)

// LLC exchanges and their serialization (RFC 7609, section 3.5.5.3). At one
// time there is at most one exchange that changes links (exchange) and one
// that changes our RMBs (rkeyExchange); the server starts neither while the
// other is under way, the client no RKey exchange during a link exchange.
// What meets a running exchange:
//
//	Message                   | during ADD LINK    | during DELETE LINK | during our CONFIRM/DELETE RKEY
//	--------------------------+--------------------+--------------------+-------------------------------
//	TEST LINK                 | reply              | reply              | reply
//	ADD LINK from client      | ignored            | queued             | queued
//	ADD LINK from server      | ignored            | -                  | processed; our RMB again after
//	DELETE LINK from client   | queued; disorderly | queued; disorderly | queued; disorderly
//	                          | fails the link now | fails the link now | fails the link now
//	DELETE LINK from server   | processed          | -                  | processed
//	DELETE LINK all           | end of group       | end of group       | end of group
//	CONFIRM RKEY              | negative, retry;   | negative, retry    | processed
//	                          | see unheard        |                    |
//	DELETE RKEY               | processed          | processed          | processed
//	reply to nothing          | ignored            | ignored            | ignored

type exKind uint8

const (
	exNone exKind = iota
	exAdd
	exDelete
)

// exStep is what an exchange waits for.
type exStep uint8

const (
	waitAddReply    exStep = iota + 1 // server: ADD LINK reply
	waitAddCont                       // ADD LINK CONTINUATION, request or reply
	waitConfirm                       // CONFIRM LINK on the new link, request or reply
	waitDrain                         // server: completions on the link to be deleted
	waitDeleteReply                   // server: DELETE LINK reply
)

// exchange is the link exchange under way.
type exchange struct {
	kind     exKind
	step     exStep
	via      *Link // carries it
	link     *Link // is being added or deleted
	pairs    []*rmb
	told     int // of pairs
	peerLeft int // RTokens that the peer has yet to tell, -1 before it said
}

// recvLLC dispatches an LLC message.
func (g *Group) recvLLC(l *Link, msg []byte) {
	m, err := wire.ParseLLC(msg)
	if err != nil {
		var op *wire.OpcodeError
		if errors.As(err, &op) && op.Discard() {
			return
		}
		g.violation(l, err)
		return
	}
	g.log.Debug("received", "link", l.id, "msg", m.LLCType(), "reply", m.IsReply())
	if !g.sameVersion(msg) {
		g.violation(l, fmt.Errorf("%s in a link group of version %d", m.LLCType(), g.cfg.Version))
		return
	}
	if l.delAsked {
		// We have told the server that this link is gone (appendix C.7.1).
		if d, ok := m.(wire.DeleteLink); !ok || !d.All {
			return
		}
	}
	switch m := m.(type) {
	case wire.ConfirmLink:
		g.recvConfirmLink(l, m)
	case wire.AddLink:
		switch {
		case g.cfg.Role == smc.Server && !m.Reply:
			g.recvAddLinkWish(m)
		case g.cfg.Role == smc.Server:
			g.recvAddLinkReply(l, m)
		case !m.Reply:
			g.recvAddLink(l, m)
		}
	case wire.ReqAddLink:
		if g.cfg.Role == smc.Server && !m.Reply {
			g.recvReqAddLink(l, m)
		}
	case wire.AddLinkCont:
		if m.Reply == (g.cfg.Role == smc.Server) {
			g.recvAddLinkCont(l, m)
		}
	case wire.DeleteLink:
		g.recvDeleteLink(l, m)
	case wire.ConfirmRKey:
		if m.Reply {
			g.recvConfirmRKeyReply(l, m)
		} else {
			g.recvConfirmRKey(l, m)
		}
	case wire.ConfirmRKeyCont:
		if m.Reply {
			g.recvConfirmRKeyContReply(l, m)
		} else {
			g.recvConfirmRKeyCont(l, m)
		}
	case wire.DeleteRKey:
		if m.Reply {
			g.recvDeleteRKeyReply(l)
		} else {
			g.recvDeleteRKey(l, m)
		}
	case wire.DeleteRKeyV2:
		if m.Reply {
			g.recvDeleteRKeyReply(l)
		} else {
			g.recvDeleteRKeyV2(l, m)
		}
	case wire.TestLink:
		g.recvTestLink(l, m)
	}
}

// sameVersion checks that a well-formed message is of the version of the
// group. It keeps to the byte order in which a peer of version 2 writes.
func (g *Group) sameVersion(msg []byte) bool {
	h, err := wire.ParseLLCHeader(msg)
	if err != nil || h.Layout.V2() != g.v2() {
		return false
	}
	if g.v2() {
		g.layout = h.Layout
	}
	return true
}

// schedule starts what waits for exchanges to end.
func (g *Group) schedule() {
	for (g.phase == phaseSecond || g.phase == phaseOpen) && g.ex.kind == exNone {
		if g.cfg.Role == smc.Server {
			if g.rk.kind != rkNone || g.peerRK.active {
				return // links do not change meanwhile
			}
			if i := slices.IndexFunc(g.links, func(l *Link) bool { return l.delWanted }); i >= 0 {
				g.startDelete(g.links[i])
				continue
			}
			if g.phase == phaseSecond && g.tried {
				g.open()
			}
			if g.addWanted {
				g.addWanted, g.tried = false, true
				g.startAdd()
				continue
			}
		}
		if g.phase == phaseOpen {
			if g.cfg.Role == smc.Client && g.addWanted {
				g.addWanted = false
				g.wish()
			}
			g.startRKey()
		}
		return
	}
}

// endExchange makes room for the next one.
func (g *Group) endExchange() {
	g.ex = exchange{}
	g.clear(timerExchange)
	g.clear(timerRetry) // a refused CONFIRM RKEY may be tried now
}

// unhook ends the exchanges that a link carried whose queue pair is closed;
// they begin again over another one.
func (g *Group) unhook(l *Link) {
	if g.ex.kind == exAdd && g.ex.via == l {
		g.dropAdded()
	}
	if g.ex.kind == exDelete && g.ex.via == l {
		d := g.ex.link
		g.endExchange()
		d.delWanted = true
	}
	if g.rk.kind != rkNone && g.rk.via == l {
		g.rk = rkeyExchange{}
		g.clear(timerRKey)
	}
	if g.peerRK.via == l {
		g.peerRK = peerRKey{}
		g.clear(timerPeerRK)
	}
	for _, c := range g.connsSorted() {
		if c.planned == l {
			c.unbind()
		}
	}
}
