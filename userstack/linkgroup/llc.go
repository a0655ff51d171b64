// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
	"fmt"

	"smcr/smc"
	"smcr/userstack/wire"
)

// LLC exchanges and their serialization (RFC 7609, section 3.5.5.3). At one
// time there is at most one exchange that changes links (exchange) and one
// that changes the local RMBs (rkeyExchange). The server does not start one of them
// while the other is under way. The client does not start an RKey exchange during a
// link exchange. What happens to a message during an exchange:
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
//	                          | see beforeAddLink  |                    |
//	DELETE RKEY               | processed          | processed          | processed
//	reply to nothing          | ignored            | ignored            | ignored

// recv dispatches an LLC message.
func (e *llcEngine) recv(l *Link, msg []byte) {
	m, err := wire.ParseLLC(msg)
	if err != nil {
		var op *wire.OpcodeError
		if errors.As(err, &op) && op.Discard() {
			return
		}
		e.violation(l, err)
		return
	}
	e.g.log.Debug("received", "link", l.id, "msg", m.LLCType(), "reply", m.IsReply())
	if !e.sameVersion(msg) {
		e.violation(l, fmt.Errorf("%s in a link group of version %d", m.LLCType(), e.g.cfg.Version))
		return
	}
	switch m := m.(type) {
	case wire.ConfirmLink:
		e.g.first.recvConfirmLink(l, m)
	case wire.AddLink:
		switch {
		case e.g.cfg.Role == smc.Server && !m.Reply:
			e.g.adding.recvOffer(m)
		case e.g.cfg.Role == smc.Server:
			e.g.adding.recvReply(l, m)
		case !m.Reply:
			e.g.adding.recv(l, m)
		}
	case wire.ReqAddLink:
		if e.g.cfg.Role == smc.Server && !m.Reply {
			e.g.adding.recvReqAddLink(l, m)
		}
	case wire.AddLinkCont:
		if m.Reply == (e.g.cfg.Role == smc.Server) {
			e.g.adding.recvCont(l, m)
		}
	case wire.DeleteLink:
		e.g.deletion.recv(l, m)
	case wire.ConfirmRKey:
		if m.Reply {
			e.g.rkeys.recvConfirmReply(l, m)
		} else {
			e.g.rkeys.recvConfirm(l, m)
		}
	case wire.ConfirmRKeyCont:
		if m.Reply {
			e.g.rkeys.recvContReply(l, m)
		} else {
			e.g.rkeys.recvCont(l, m)
		}
	case wire.DeleteRKey:
		if m.Reply {
			e.g.rkeys.recvDeleteReply(l, m.Negative)
		} else {
			e.g.rkeys.recvDelete(l, m)
		}
	case wire.DeleteRKeyV2:
		if m.Reply {
			e.g.rkeys.recvDeleteReply(l, m.Negative)
		} else {
			e.g.rkeys.recvDeleteV2(l, m)
		}
	case wire.TestLink:
		e.g.tests.recv(l, m)
	}
}

// sameVersion checks that a well-formed message has the version of the
// group. It remembers the byte order in which a peer of version 2 writes.
func (e *llcEngine) sameVersion(msg []byte) bool {
	h, err := wire.ParseLLCHeader(msg)
	if err != nil || h.Layout.V2() != e.g.profile.extended {
		return false
	}
	if e.g.profile.extended {
		e.g.llc.layout = h.Layout
	}
	return true
}
