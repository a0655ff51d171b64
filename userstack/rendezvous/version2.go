// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"slices"

	"smcr/smc"
	"smcr/userstack/wire"
)

// version2 is SMC version 2, in its releases 2.0 and 2.1.
type version2 struct {
	hostname string
	offer    wire.Offer // client: this host's; server: the client's
	maxLinks uint8      // the most that this host takes
	gids     []smc.GID  // of this host's devices
	tellPort bool       // the peer is a stack of this module, see wire.VendorOUI
	agreed   Terms
}

var _ version = (*version2)(nil)

func (*version2) number() uint8 { return wire.Version2 }

// propose implements version. It is called after that of version 1.
func (v *version2) propose(p *wire.Proposal, h *Host) *Refusal {
	switch {
	case len(h.EIDs) == 0:
		return &Refusal{Code: smc.DiagNoUEID}
	case h.NoPortV2 != nil:
		return h.NoPortV2
	}
	v.offer = wire.Offer{Mode: wire.ModeR, EIDs: h.EIDs, GID: h.PortV2.GID, Release: h.Release}
	if h.Release >= wire.ReleaseV21 {
		v.offer.MaxConns, v.offer.MaxLinks, v.offer.VendorOUI = h.MaxConns, h.MaxLinks, wire.VendorOUI
	}
	v.agreed.Local, v.maxLinks, v.gids = h.PortV2.Local, h.MaxLinks, h.PortV2.GIDs
	q := *p
	if q.TypeV1 == wire.ModeNone {
		q.MAC = h.PortV2.MAC // servers use it nevertheless
	}
	q, err := q.WithOffer(v.offer)
	if err != nil {
		no := internal(err)
		return &no
	}
	*p = q
	return nil
}

// accepted implements version: it checks what the server chose from the offer.
func (v *version2) accepted(a *answer) (askPath bool, no *Refusal) {
	if !slices.Contains(v.offer.EIDs, a.eid) {
		return false, refuse(smc.DiagNoUEID, "server chose %q, which was not offered", a.eid)
	}
	t, x := &v.agreed, a.ext
	t.EID = a.eid
	if x == nil {
		return false, nil
	}
	t.Release, t.MaxConns, t.MaxLinks = x.Release, x.MaxConns, x.MaxLinks
	if x.Release < wire.ReleaseV21 {
		t.MaxConns, t.MaxLinks = MaxConnsV2, MaxLinksV2
	}
	switch {
	case x.Release > v.offer.Release:
		return false, refuse(smc.DiagRelease, "server chose release %d", x.Release)
	case t.MaxConns < MinConnsV2:
		return false, refuse(smc.DiagMaxConns, "server wants %d connections in a link group", t.MaxConns)
	case t.MaxLinks < 1 || t.MaxLinks > MaxLinksV2:
		return false, refuse(smc.DiagMaxLinks, "server wants %d links in a link group", t.MaxLinks)
	}
	if t.Release < wire.ReleaseV21 {
		t.MaxLinks = min(t.MaxLinks, v.maxLinks)
	}
	v.learn(x, t.Release >= wire.ReleaseV21)
	v.tellPort = t.Peer.UDPPort != 0
	return !x.Direct, nil
}

// learn takes what the peer tells of itself in a first contact. ports says that the peer
// may tell the UDP port of its queue pair: a client has offered it.
func (v *version2) learn(x *wire.FirstContactExt, ports bool) {
	v.agreed.Peer = PeerSystem{OS: x.OS, Release: x.Release, Host: x.Hostname.String()}
	if ports {
		v.agreed.Peer.UDPPort = x.UDPPort()
	}
}

// path implements version: the server has a router on its way to this host, so there must
// be one on the way back.
func (v *version2) path(a *answer, routed bool) *Refusal {
	if v.agreed.Routed = routed; !routed {
		return refuse(smc.DiagIndirect, "the server expects a router on the path, but its RoCE GID %s is in our subnet", a.GID)
	}
	return nil
}

// offersVersion2 reports whether a proposal offers SMC-R of version 2.
func offersVersion2(p *wire.Proposal) bool { return p.Version >= wire.Version2 && p.TypeV2.HasR() }

// choose implements version: the server's choice from the client's offer.
func (v *version2) choose(p *wire.Proposal, h *Host) *Refusal {
	o, err := p.Offer()
	if err != nil {
		return refuse(smc.DiagNoV2Ext, "%w", err)
	}
	if !o.Mode.HasR() {
		return refuse(smc.DiagModeMismatch, "proposal offers %s", o.Mode)
	}
	i := slices.IndexFunc(o.EIDs, func(e wire.EID) bool { return slices.Contains(h.EIDs, e) })
	switch {
	case i < 0:
		return refuse(smc.DiagNoUEID, "no enterprise ID in common with the client")
	case h.NoPortV2 != nil:
		return h.NoPortV2
	case h.NoPath != nil:
		return h.NoPath
	}
	v.offer = o
	t := Terms{EID: o.EIDs[i], Local: h.PortV2.Local, Routed: h.Routed, MaxConns: h.MaxConns, MaxLinks: h.MaxLinks}
	if t.Release = min(o.Release, h.Release); t.Release >= wire.ReleaseV21 {
		t.MaxConns, t.MaxLinks = min(t.MaxConns, o.MaxConns), min(t.MaxLinks, o.MaxLinks)
	}
	switch {
	case t.MaxConns < MinConnsV2:
		return refuse(smc.DiagMaxConns, "client wants %d connections in a link group", o.MaxConns)
	case t.MaxLinks < 1:
		return refuse(smc.DiagMaxLinks, "client wants 0 links in a link group")
	}
	v.agreed = t
	v.tellPort = t.Release >= wire.ReleaseV21 && o.VendorOUI == wire.VendorOUI
	return nil
}

func (v *version2) port(*wire.Proposal) (smc.GID, smc.MAC) { return v.offer.GID, smc.MAC{} }

// confirmed implements version: the client confirms the terms, and says who it is.
func (v *version2) confirmed(a *answer) *Refusal {
	t, x := &v.agreed, a.ext
	switch {
	case x == nil:
		return refuse(smc.DiagInternal, "CONFIRM of a first contact without the extension")
	case x.Release != t.Release:
		return refuse(smc.DiagRelease, "client confirms release %d, not %d", x.Release, t.Release)
	case t.Release >= wire.ReleaseV21 && x.MaxConns != t.MaxConns:
		return refuse(smc.DiagMaxConns, "client confirms %d connections, not %d", x.MaxConns, t.MaxConns)
	case t.Release >= wire.ReleaseV21 && x.MaxLinks != t.MaxLinks:
		return refuse(smc.DiagMaxLinks, "client confirms %d links, not %d", x.MaxLinks, t.MaxLinks)
	}
	v.learn(x, v.tellPort)
	return nil
}

// ext is what this host tells the peer in a first contact.
func (v *version2) ext(made GroupMade) *wire.FirstContactExt {
	t := &v.agreed
	x := &wire.FirstContactExt{
		Direct: !t.Routed, OS: smc.OSLinux, Release: t.Release, Hostname: wire.NewHostname(v.hostname),
		MaxConns: t.MaxConns, MaxLinks: t.MaxLinks,
	}
	if v.tellPort {
		x.Vendor = wire.VendorUDPPort(made.UDPPort)
	}
	return x
}

func (v *version2) accept(local wire.Endpoint) wire.CLC {
	return wire.AcceptV2{Endpoint: local, EID: v.agreed.EID}
}

func (v *version2) acceptFirst(made GroupMade) wire.CLC {
	return wire.AcceptV2{Endpoint: made.Local, EID: v.agreed.EID, FirstContact: v.ext(made)}
}

func (v *version2) confirm(local wire.Endpoint) wire.CLC {
	return wire.ConfirmV2{Endpoint: local, EID: v.agreed.EID}
}

// confirmFirst implements version. CONFIRM lists the GID of the link, and those of the
// devices that could take another one: two in all, as with Linux.
func (v *version2) confirmFirst(made GroupMade) wire.CLC {
	c := wire.ConfirmV2{Endpoint: made.Local, EID: v.agreed.EID, FirstContact: v.ext(made)}
	c.GIDs = []smc.GID{made.Local.GID}
	for _, g := range v.gids {
		if g != made.Local.GID && len(c.GIDs) < MaxLinksV2 {
			c.GIDs = append(c.GIDs, g)
		}
	}
	return c
}

func (*version2) decline(d wire.Decline) wire.Decline {
	d.Version, d.OSType = wire.Version2, smc.OSLinux
	return d
}

// terms implements version.
func (v *version2) terms() *Terms {
	t := v.agreed
	return &t
}
