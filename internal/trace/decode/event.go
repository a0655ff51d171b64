// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"net/netip"
	"time"

	"smcr/smc"
)

// Type is the kind of an event: which protocol it belongs to.
type Type string

// The types of events.
const (
	CLC  Type = "clc"  // a CLC message on a TCP connection
	LLC  Type = "llc"  // an LLC message on a link
	CDC  Type = "cdc"  // a CDC message of a connection
	RoCE Type = "roce" // a RoCE packet
)

// Types are all types of events.
var Types = []Type{CLC, LLC, CDC, RoCE}

// An Event is one message or one packet.
type Event struct {
	// Frame is the number of the packet in its file, from 1 on; 0 without a file.
	Frame int
	Time  time.Time
	Type  Type
	// Src and Dst are the two ends. The port is 0 unless the type is CLC. With RoCE
	// version 1 the addresses are the GIDs.
	Src, Dst netip.AddrPort
	// SrcQPN and DstQPN are the queue pairs. A RoCE packet names only that of its
	// destination; SrcQPN is 0 if it is not known from messages before.
	SrcQPN, DstQPN smc.QPN
	// Group is the link group, in the number that listings show. Empty if it is not known:
	// packets do not have it.
	Group string
	// Message is the name of the message, or the operation of the packet.
	Message string
	Reply   bool // of an LLC message
	Fields  []Field
	// Conn is the connection that a CDC message is about, if the CLC messages of this
	// connection were seen; the zero value otherwise.
	Conn Conn
	// Fault says what is wrong with the message or the packet. Empty: nothing.
	Fault string
}

// A Conn is a connection by its TCP addresses.
type Conn struct {
	Client, Server netip.AddrPort
}

// String returns "CLIENT-SERVER", or "" for the zero value.
func (c Conn) String() string {
	if c == (Conn{}) {
		return ""
	}
	return c.Client.String() + "-" + c.Server.String()
}

// A Field is a field of a message.
type Field struct {
	Name  string // in snake_case; stable
	Value any    // string, bool, an integer, or a slice of strings
	Brief bool   // one of those that the short form shows
}

// fields collects the fields of a message.
type fields []Field

func (f *fields) brief(name string, value any) { *f = append(*f, Field{name, value, true}) }
func (f *fields) more(name string, value any)  { *f = append(*f, Field{name, value, false}) }

// flag adds a boolean, which the short form shows if it is set.
func (f *fields) flag(name string, value bool) { *f = append(*f, Field{name, value, value}) }

// A Filter selects events. Zero fields select all.
type Filter struct {
	Types []Type
	// Conn selects the CLC and CDC messages of the connections that have this address and
	// port at one end.
	Conn netip.AddrPort
	// Peer selects by the address of one end.
	Peer netip.Addr
	// QPN selects by the queue pair at one end; HasQPN says that it is set.
	QPN    smc.QPN
	HasQPN bool
	// Group selects by the link group.
	Group string
}

// Match reports whether the filter selects e.
func (f *Filter) Match(e *Event) bool {
	typed := len(f.Types) == 0
	for _, t := range f.Types {
		typed = typed || t == e.Type
	}
	switch {
	case !typed:
		return false
	case f.Conn.IsValid() && !isEnd(f.Conn, e):
		return false
	case f.Peer.IsValid() && e.Src.Addr() != f.Peer && e.Dst.Addr() != f.Peer && e.Conn.Client.Addr() != f.Peer && e.Conn.Server.Addr() != f.Peer:
		return false
	case f.HasQPN && (e.Type == CLC && !mentions(e, f.QPN) || e.Type != CLC && e.SrcQPN != f.QPN && e.DstQPN != f.QPN):
		return false
	}
	return f.Group == "" || f.Group == e.Group
}

func isEnd(a netip.AddrPort, e *Event) bool {
	if e.Type == CLC {
		return e.Src == a || e.Dst == a
	}
	return e.Conn.Client == a || e.Conn.Server == a
}

// mentions reports whether a CLC message names the queue pair.
func mentions(e *Event, q smc.QPN) bool {
	for _, f := range e.Fields {
		if f.Name == "qpn" {
			return f.Value == q.String()
		}
	}
	return false
}
