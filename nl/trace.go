// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"smcr/smc"
)

// TraceTypes is a set of types of trace events.
type TraceTypes uint8

// The types of trace events.
const (
	TraceCLC  TraceTypes = 1 << iota // CLC messages
	TraceLLC                         // LLC messages
	TraceCDC                         // CDC messages
	TraceRoCE                        // RoCE packets, also those with LLC and CDC messages
)

// A TraceRequest begins, continues or ends a trace of what a stack sends and receives.
type TraceRequest struct {
	// ID is the number of a trace that has begun; 0 begins one.
	ID uint32
	// End ends the trace.
	End bool
	// Types and Group select events of a trace that begins. Group 0 stands for all link
	// groups; CLC messages belong to none. The last byte of Group does not matter.
	Types TraceTypes
	Group LinkGroupID
}

// A Trace is the answer to a [TraceRequest]: what has happened since the request before it.
type Trace struct {
	ID   uint32 // for the next request
	Lost uint64 // events that did not fit into the memory of the trace, since the request before
	// Conns are the connections that there are when a trace begins.
	Conns  []TraceConn
	Events []TraceEvent
}

// A TraceConn says by which alert tokens the CDC messages of a connection are known.
type TraceConn struct {
	Local, Remote    netip.AddrPort
	Role             smc.Role
	Group            LinkGroupID
	GID, PeerGID     smc.GID
	QPN, PeerQPN     uint32
	Token, PeerToken uint32 // in messages to this stack, and to the peer
}

// A TraceEvent is a message or a packet that a stack has sent or received.
type TraceEvent struct {
	Time  time.Time
	Type  TraceTypes // one
	Out   bool       // sent, not received
	Group LinkGroupID
	// RoCE is the version of RoCE, 1 or 2; 0 for a CLC message.
	RoCE uint8
	// Local and Remote are the TCP addresses of a CLC message, otherwise the addresses of the
	// GIDs, with port 0.
	Local, Remote netip.AddrPort
	QPN, PeerQPN  uint32 // 0 for a CLC message
	// Length is the length of the message, or of the packet from the BTH to the end of the
	// payload, in bytes. Data are its first bytes: of a packet that carries data of a program,
	// only the headers.
	Length uint32
	Data   []byte
}

func (r *TraceRequest) encode(ae *attrEncoder) {
	ae.Uint32(attrOwnTraceID, r.ID)
	boolAttr(ae, attrOwnTraceEnd, r.End)
	ae.Uint8(attrOwnTraceTypes, uint8(r.Types))
	ae.Uint32(attrOwnLinkGroup, uint32(r.Group))
}

func (r *TraceRequest) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrOwnTraceID:
			r.ID = number32(ad)
		case attrOwnTraceEnd:
			r.End = number8(ad) != 0
		case attrOwnTraceTypes:
			r.Types = TraceTypes(number8(ad))
		case attrOwnLinkGroup:
			r.Group = LinkGroupID(number32(ad))
		}
	}
	return ad.Err()
}

// traceHead is the first row of an answer.
type traceHead struct {
	id   uint32
	lost uint64
}

func (h *traceHead) encode(ae *attrEncoder) {
	ae.Uint32(attrTraceID, h.id)
	uintAttr(ae, attrTraceLost, h.lost)
}

func (h *traceHead) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrTraceID:
			h.id = number32(ad)
		case attrTraceLost:
			h.lost = number(ad)
		}
	}
	return ad.Err()
}

// endAttr encodes an address with a port, and nothing for none.
func endAttr(ae *attrEncoder, typ uint16, a netip.AddrPort) {
	if b, err := a.MarshalBinary(); err == nil && a.IsValid() {
		ae.Bytes(typ, b)
	}
}

// end is the inverse of endAttr.
func end(ad *attrDecoder) (a netip.AddrPort) {
	if err := a.UnmarshalBinary(ad.Bytes()); err != nil {
		ad.fail(fmt.Errorf("nl: attribute %d is not an address: %w", ad.Type(), err))
	}
	return a
}

func (c *TraceConn) encode(ae *attrEncoder) {
	endAttr(ae, attrTraceLocal, c.Local)
	endAttr(ae, attrTraceRemote, c.Remote)
	ae.Uint8(attrTraceRole, uint8(c.Role))
	ae.Uint32(attrTraceGroup, uint32(c.Group))
	ae.Bytes(attrTraceGID, c.GID[:])
	ae.Bytes(attrTracePeerGID, c.PeerGID[:])
	ae.Uint32(attrTraceQPN, c.QPN)
	ae.Uint32(attrTracePeerQPN, c.PeerQPN)
	ae.Uint32(attrTraceToken, c.Token)
	ae.Uint32(attrTracePeerToken, c.PeerToken)
}

func (c *TraceConn) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrTraceLocal:
			c.Local = end(ad)
		case attrTraceRemote:
			c.Remote = end(ad)
		case attrTraceRole:
			c.Role = smc.Role(number8(ad))
		case attrTraceGroup:
			c.Group = LinkGroupID(number32(ad))
		case attrTraceGID:
			copy(c.GID[:], ad.Bytes())
		case attrTracePeerGID:
			copy(c.PeerGID[:], ad.Bytes())
		case attrTraceQPN:
			c.QPN = number32(ad)
		case attrTracePeerQPN:
			c.PeerQPN = number32(ad)
		case attrTraceToken:
			c.Token = number32(ad)
		case attrTracePeerToken:
			c.PeerToken = number32(ad)
		}
	}
	return ad.Err()
}

func (e *TraceEvent) encode(ae *attrEncoder) {
	ae.Uint64(attrTraceTime, uint64(e.Time.UnixNano()))
	ae.Uint8(attrTraceType, uint8(e.Type))
	boolAttr(ae, attrTraceOut, e.Out)
	ae.Uint32(attrTraceGroup, uint32(e.Group))
	ae.Uint8(attrTraceRoCE, e.RoCE)
	endAttr(ae, attrTraceLocal, e.Local)
	endAttr(ae, attrTraceRemote, e.Remote)
	ae.Uint32(attrTraceQPN, e.QPN)
	ae.Uint32(attrTracePeerQPN, e.PeerQPN)
	ae.Uint32(attrTraceLength, e.Length)
	ae.Bytes(attrTraceData, e.Data)
}

func (e *TraceEvent) decode(ad *attrDecoder) error {
	for ad.Next() {
		switch ad.Type() {
		case attrTraceTime:
			e.Time = time.Unix(0, int64(number(ad)))
		case attrTraceType:
			e.Type = TraceTypes(number8(ad))
		case attrTraceOut:
			e.Out = number8(ad) != 0
		case attrTraceGroup:
			e.Group = LinkGroupID(number32(ad))
		case attrTraceRoCE:
			e.RoCE = number8(ad)
		case attrTraceLocal:
			e.Local = end(ad)
		case attrTraceRemote:
			e.Remote = end(ad)
		case attrTraceQPN:
			e.QPN = number32(ad)
		case attrTracePeerQPN:
			e.PeerQPN = number32(ad)
		case attrTraceLength:
			e.Length = number32(ad)
		case attrTraceData:
			e.Data = append([]byte(nil), ad.Bytes()...)
		}
	}
	return ad.Err()
}

// dumpTrace answers a trace request. Only those who may change the stack get an answer:
// messages have what other users must not know of connections.
func (s *Server) dumpTrace(ctx context.Context, req *request, out *replies) error {
	if !req.dump() {
		return syscall.EOPNOTSUPP
	}
	var r TraceRequest
	if err := unmarshalAttrs(req.attrs, &r); err != nil {
		return syscall.EINVAL
	}
	t, err := s.ctl.Trace(ctx, r)
	if err != nil {
		return err
	}
	if r.ID == 0 || r.End {
		s.cfg.Logger.Info("trace", "uid", req.peer.UID, "pid", req.peer.PID, "trace", t.ID, "begins", !r.End)
	}
	if err := out.row(req.cmd, attrOwnTrace, &traceHead{t.ID, t.Lost}); err != nil {
		return err
	}
	for i := range t.Conns {
		if err := out.row(req.cmd, attrOwnTraceConn, &t.Conns[i]); err != nil {
			return err
		}
	}
	for i := range t.Events {
		if err := out.row(req.cmd, attrOwnTraceEvent, &t.Events[i]); err != nil {
			return err
		}
	}
	return nil
}

// parse adds the row of an answer.
func (t *Trace) parse(_ uint8, attrs []byte) error {
	ad := attrDecoder{b: attrs}
	for ad.Next() {
		switch ad.Type() {
		case attrOwnTrace:
			var h traceHead
			ad.Nested(&h)
			t.ID, t.Lost = h.id, h.lost
		case attrOwnTraceConn:
			t.Conns = append(t.Conns, TraceConn{})
			ad.Nested(&t.Conns[len(t.Conns)-1])
		case attrOwnTraceEvent:
			t.Events = append(t.Events, TraceEvent{})
			ad.Nested(&t.Events[len(t.Events)-1])
		}
	}
	return ad.Err()
}
