// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"fmt"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// clc decodes one CLC message, or the beginning of one.
func (d *Decoder) clc(now time.Time, k flowKey, b []byte) {
	ev := &Event{Frame: d.frame, Time: now, Type: CLC, Src: k.src, Dst: k.dst}
	h, err := wire.ParseHeader(b)
	if err != nil {
		d.fault(now, k, "CLC", err)
		return
	}
	ev.Message = h.Type.String()
	var f fields
	f.brief("version", h.Version)
	m, err := wire.ParseCLC(b)
	if err != nil {
		f.more("length", h.Length)
		ev.Fields, ev.Fault = f, faultOf(err)
		d.emit(ev)
		return
	}
	switch m := m.(type) {
	case wire.Proposal:
		ev.Conn = Conn{Client: k.src, Server: k.dst}
		proposal(&f, &m)
	case wire.Accept:
		f.flag("first_contact", m.FirstContact)
		endpoint(&f, &m.Endpoint)
		d.accepted(ev, k, &m.Endpoint)
	case wire.AcceptV2:
		f.flag("first_contact", m.FirstContact != nil)
		endpoint(&f, &m.Endpoint)
		f.brief("eid", m.EID.String())
		firstContact(&f, m.FirstContact)
		d.accepted(ev, k, &m.Endpoint)
	case wire.Confirm:
		f.flag("first_contact", m.FirstContact)
		endpoint(&f, &m.Endpoint)
		d.confirmed(ev, k, &m.Endpoint)
	case wire.ConfirmV2:
		f.flag("first_contact", m.FirstContact != nil)
		endpoint(&f, &m.Endpoint)
		f.brief("eid", m.EID.String())
		firstContact(&f, m.FirstContact)
		if len(m.GIDs) > 0 {
			f.more("gids", gids(m.GIDs))
		}
		d.confirmed(ev, k, &m.Endpoint)
	case wire.Decline:
		f.brief("reason", m.Diagnosis.String())
		f.flag("out_of_sync", m.OutOfSync)
		f.more("peer_id", m.PeerID.String())
		if m.Version >= wire.Version2 {
			f.more("os", m.OSType.String())
		}
	}
	f.more("length", h.Length)
	ev.Fields = f
	d.emit(ev)
}

func proposal(f *fields, m *wire.Proposal) {
	f.brief("offers_v1", m.TypeV1.String())
	f.brief("offers_v2", m.TypeV2.String())
	f.brief("peer_id", m.PeerID.String())
	f.more("gid", m.GID.String())
	f.more("mac", m.MAC.String())
	if m.IPv4.IsValid() {
		f.more("ipv4_subnet", m.IPv4.String())
	}
	var prefixes []string
	for _, p := range m.IPv6 {
		prefixes = append(prefixes, p.String())
	}
	if prefixes != nil {
		f.more("ipv6_prefixes", prefixes)
	}
	if m.TypeV2 == wire.ModeNone {
		return
	}
	o, err := m.Offer()
	if err != nil {
		f.brief("v2_fault", faultOf(err))
		return
	}
	var eids []string
	for _, e := range o.EIDs {
		eids = append(eids, e.String())
	}
	f.brief("eids", eids)
	f.more("v2_gid", o.GID.String())
	f.more("release", o.Release)
	if o.Release >= wire.ReleaseV21 {
		f.more("max_conns", o.MaxConns)
		f.more("max_links", o.MaxLinks)
		f.more("features", o.Features)
	}
	f.more("system_eid", o.HasSEID)
	if o.SMCD != nil {
		f.more("ism_devices", len(o.SMCD.Devices))
	}
}

func endpoint(f *fields, e *wire.Endpoint) {
	f.brief("qpn", e.QPN.String())
	f.brief("alert_token", token(e.AlertToken))
	f.brief("rmb_rkey", e.RMB.RKey.String())
	f.more("rmb_address", hex64(e.RMB.Addr))
	f.more("rmbe_index", e.RMBEIndex)
	f.brief("rmbe_size", e.RMBESize.Bytes())
	f.brief("mtu", e.MTU.Bytes())
	f.more("psn", e.PSN.String())
	f.more("peer_id", e.PeerID.String())
	f.more("gid", e.GID.String())
	f.more("mac", e.MAC.String())
}

func firstContact(f *fields, x *wire.FirstContactExt) {
	if x == nil {
		return
	}
	f.brief("host", x.Hostname.String())
	f.brief("os", x.OS.String())
	f.more("release", x.Release)
	f.more("direct", x.Direct)
	if x.Release >= wire.ReleaseV21 {
		f.more("max_conns", x.MaxConns)
		f.more("max_links", x.MaxLinks)
		f.more("features", x.Features)
		f.more("vendor", fmt.Sprintf("0x%08x", x.Vendor))
	}
}

func gids(list []smc.GID) (out []string) {
	for _, g := range list {
		out = append(out, g.String())
	}
	return out
}

func token(t uint32) string { return fmt.Sprintf("0x%08x", t) }

// accepted learns from an ACCEPT, which the server sends.
func (d *Decoder) accepted(ev *Event, k flowKey, e *wire.Endpoint) {
	ev.Conn = Conn{Client: k.dst, Server: k.src}
	q := QP{e.GID.Addr(), e.QPN}
	d.offers.put(ev.Conn, q)
	d.Learn(ev.Conn, e.AlertToken, q)
}

// confirmed learns from a CONFIRM, which the client sends.
func (d *Decoder) confirmed(ev *Event, k flowKey, e *wire.Endpoint) {
	ev.Conn = Conn{Client: k.src, Server: k.dst}
	q := QP{e.GID.Addr(), e.QPN}
	d.Learn(ev.Conn, e.AlertToken, q)
	if s, ok := d.offers.get(ev.Conn); ok {
		d.LearnPair(q, s)
	}
}
