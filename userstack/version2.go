// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"syscall"

	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/devices"
	"smcr/userstack/linkgroup"
	"smcr/userstack/network"
	"smcr/userstack/wire"
)

// SMC version 2 as SMC-R has it: what the two sides agree on in the CLC
// messages. It is offered and taken only where the stack has an enterprise ID
// and the device a RoCE version 2 GID of an IPv4 address, as with Linux. Then
// the peer may be behind a router, whom version 1 does not reach.

// DefaultUEID is the user-defined enterprise ID that 'smcr serve' gives its stack
// unless a configuration says otherwise, and that a stack made by [New] has unless
// its Config names a Provider, so that two such stacks use version 2 with nothing
// configured. AddUEID and RemoveUEID of [Stack.Control] change that.
const DefaultUEID = "SMCR-USERSTACK"

// What a link group of version 2 may have, in the bounds of Linux.
const (
	minConnsV2 = 16
	maxConnsV2 = 255
	maxLinksV2 = 2
)

// eidTable holds the user-defined enterprise IDs in the order in which they
// were added.
type eidTable struct {
	mu  sync.Mutex
	ids []wire.EID
}

func (t *eidTable) list() []wire.EID {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.ids)
}

// add adds an ID with the kernel's errors, in its order: EINVAL, ERANGE, EEXIST.
func (t *eidTable) add(s string) error {
	if err := nl.CheckEID(s); err != nil {
		return err
	}
	id, err := wire.ParseEID(s)
	if err != nil {
		return fmt.Errorf("%w: %w", err, os.ErrInvalid)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case len(t.ids) >= nl.MaxUEIDs:
		return fmt.Errorf("the stack holds at most %d enterprise IDs: %w", nl.MaxUEIDs, syscall.ERANGE)
	case slices.Contains(t.ids, id):
		return fmt.Errorf("enterprise ID %q: %w", id, syscall.EEXIST)
	}
	t.ids = append(t.ids, id)
	return nil
}

func (t *eidTable) remove(s string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	id, err := wire.ParseEID(s)
	i := slices.Index(t.ids, id)
	if err != nil || i < 0 {
		return fmt.Errorf("no such enterprise ID: %w", syscall.ENOENT)
	}
	t.ids = slices.Delete(t.ids, i, i+1)
	return nil
}

func (t *eidTable) flush() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ids = nil
}

// terms are what both sides agree on for a link group of version 2.
type terms struct {
	eid wire.EID
	// local is our address with its prefix length: the GIDs of the devices
	// are addresses in this subnet.
	local netip.Prefix
	// routed tells that the peer's GID is behind a router.
	routed             bool
	release            uint8
	maxConns, maxLinks uint8
	// What the peer told of itself; a server learns it late.
	peerOS      smc.OS
	peerRelease uint8
	peerHost    string
}

// ext is what we tell the peer in a first contact.
func (t *terms) ext(hostname string) *wire.FirstContactExt {
	return &wire.FirstContactExt{
		Direct: !t.routed, OS: smc.OSLinux, Release: t.release, Hostname: wire.NewHostname(hostname),
		MaxConns: t.maxConns, MaxLinks: t.maxLinks,
	}
}

// learn takes what the peer tells in a first contact.
func (t *terms) learn(x *wire.FirstContactExt) {
	t.peerOS, t.peerRelease, t.peerHost = x.OS, x.Release, x.Hostname.String()
}

// speaksV2 reports whether version 2 may be spoken with a peer of that address.
func (s *Stack) speaksV2(remote netip.Addr) bool {
	return !s.cfg.NoVersion2 && remote.Unmap().Is4() && len(s.eids.list()) > 0
}

// errRouted tells that version 1 does not reach a peer.
func errRouted(remote netip.Addr) error {
	return fmt.Errorf("%w: %s is behind a router, which requires SMC version 2 and an enterprise ID", ErrNotOnLink, remote)
}

// release returns the latest release of version 2 that the stack speaks.
func (s *Stack) release() uint8 {
	if s.cfg.release0 {
		return 0
	}
	return wire.ReleaseV21
}

// limits returns what the stack offers.
func (s *Stack) limits() (conns, links uint8) {
	conns, links = maxConnsV2, maxLinksV2
	if s.cfg.MaxConns > 0 {
		conns = uint8(max(s.cfg.MaxConns, minConnsV2))
	}
	if s.cfg.MaxLinks == 1 {
		links = 1
	}
	return conns, links
}

// devicesV2 returns the devices that version 2 can use, in their order, and
// our address with its prefix length.
func devicesV2(devs []*devices.Port, rt network.Route, local netip.Addr) ([]*devices.Port, netip.Prefix) {
	own, ok := rt.PrefixOf(local)
	if !ok || !own.Addr().Is4() {
		return nil, netip.Prefix{}
	}
	var out []*devices.Port
	for _, d := range devs {
		if _, _, err := d.SourceGID(own); err == nil {
			out = append(out, d)
		}
	}
	return out, own
}

// offer makes the client's offer of version 2, if it can make one. Of the
// terms the answer of the server will tell the rest.
func (s *Stack) offer(devs []*devices.Port, rt network.Route, local netip.Addr) (*wire.Offer, *terms, []*devices.Port) {
	eids := s.eids.list()
	if len(eids) == 0 || s.cfg.NoVersion2 {
		return nil, nil, nil
	}
	devs, own := devicesV2(devs, rt, local)
	if len(devs) == 0 {
		return nil, nil, nil
	}
	d, err := devs[0].Describe(own)
	if err != nil {
		return nil, nil, nil
	}
	o := &wire.Offer{Mode: wire.ModeR, EIDs: eids, GID: d.GID, Release: s.release()}
	if o.Release >= wire.ReleaseV21 {
		o.MaxConns, o.MaxLinks = s.limits()
	}
	return o, &terms{local: own}, devs
}

// gids are those that CONFIRM lists: that of the link, and those of the devices
// that could take another one, two as with Linux.
func (t *terms) gids(first smc.GID, devs []*devices.Port) []smc.GID {
	out := []smc.GID{first}
	for _, d := range devs {
		if _, g, err := d.SourceGID(t.local); err == nil && smc.GID(g) != first && len(out) < maxLinksV2 {
			out = append(out, smc.GID(g))
		}
	}
	return out
}

// accepted checks what the server chose from our offer and completes the
// terms.
func (s *Stack) accepted(t *terms, o *wire.Offer, a *answer) error {
	if !slices.Contains(o.EIDs, a.eid) {
		return &DeclineError{Code: smc.DiagNoUEID, Err: fmt.Errorf("server chose %q, which was not offered", a.eid)}
	}
	t.eid = a.eid
	x := a.ext
	if x == nil {
		return nil
	}
	t.release, t.maxConns, t.maxLinks = x.Release, x.MaxConns, x.MaxLinks
	if x.Release < wire.ReleaseV21 {
		t.maxConns, t.maxLinks = maxConnsV2, maxLinksV2
	}
	switch {
	case x.Release > o.Release:
		return &DeclineError{Code: smc.DiagRelease, Err: fmt.Errorf("server chose release %d", x.Release)}
	case t.maxConns < minConnsV2:
		return &DeclineError{Code: smc.DiagMaxConns, Err: fmt.Errorf("server wants %d connections in a link group", t.maxConns)}
	case t.maxLinks < 1 || t.maxLinks > maxLinksV2:
		return &DeclineError{Code: smc.DiagMaxLinks, Err: fmt.Errorf("server wants %d links in a link group", t.maxLinks)}
	}
	if !x.Direct {
		// The server has a router on its way to us; have we one too?
		var err error
		if t.routed, err = s.routed(t.local.Addr(), a.GID); err != nil {
			return err
		}
		if !t.routed {
			return &DeclineError{Code: smc.DiagIndirect, Err: fmt.Errorf("the server expects a router on the path, but its RoCE GID %s is in our subnet", a.GID)}
		}
	}
	if _, links := s.limits(); t.release < wire.ReleaseV21 {
		t.maxLinks = min(t.maxLinks, links)
	}
	t.learn(x)
	return nil
}

// negotiate is the server's choice from an offer of version 2. An error says
// why it is not version 2; a proposal may still offer version 1.
func (s *Stack) negotiate(prop wire.Proposal, devs []*devices.Port, rt network.Route, local netip.Addr) (*terms, smc.GID, []*devices.Port, error) {
	fail := func(code smc.Diagnosis, format string, args ...any) (*terms, smc.GID, []*devices.Port, error) {
		return nil, smc.GID{}, nil, &DeclineError{Code: code, Err: fmt.Errorf(format, args...)}
	}
	o, err := prop.Offer()
	if err != nil {
		return fail(smc.DiagNoV2Ext, "%w", err)
	}
	if !o.Mode.HasR() {
		return fail(smc.DiagModeMismatch, "proposal offers %s", o.Mode)
	}
	t := &terms{}
	own := s.eids.list()
	i := slices.IndexFunc(o.EIDs, func(e wire.EID) bool { return slices.Contains(own, e) })
	if i < 0 || s.cfg.NoVersion2 {
		return fail(smc.DiagNoUEID, "no enterprise ID in common with the client")
	}
	t.eid = o.EIDs[i]
	devs, t.local = devicesV2(devs, rt, local)
	if len(devs) == 0 {
		return fail(smc.DiagNoSMCRDev, "%w", ErrNoDevice)
	}
	if t.routed, err = s.routed(t.local.Addr(), o.GID); err != nil {
		return nil, smc.GID{}, nil, err
	}
	t.maxConns, t.maxLinks = s.limits()
	if t.release = min(o.Release, s.release()); t.release >= wire.ReleaseV21 {
		t.maxConns, t.maxLinks = min(t.maxConns, o.MaxConns), min(t.maxLinks, o.MaxLinks)
	}
	switch {
	case t.maxConns < minConnsV2:
		return fail(smc.DiagMaxConns, "client wants %d connections in a link group", o.MaxConns)
	case t.maxLinks < 1:
		return fail(smc.DiagMaxLinks, "client wants 0 links in a link group")
	}
	return t, o.GID, devs, nil
}

// routed reports whether a router is on the way from one of our addresses to a
// peer's GID. The error is a *DeclineError.
func (s *Stack) routed(local netip.Addr, gid smc.GID) (bool, error) {
	ip, ok := gid.IPv4()
	if !ok {
		return false, &DeclineError{Code: smc.DiagNoRoute, Err: fmt.Errorf("%w: RoCE GID %s of the peer is not an IPv4 address", ErrNotOnLink, gid)}
	}
	rt, err := s.net.Route(local, ip)
	if err != nil {
		return false, &DeclineError{Code: smc.DiagNoRoute, Err: fmt.Errorf("RoCE GID of the peer: %w", err)}
	}
	return rt.Gateway.IsValid(), nil
}

// confirmed checks that the client confirms the terms, and completes them.
func (t *terms) confirmed(a *answer) error {
	x := a.ext
	switch {
	case x == nil:
		return fmt.Errorf("userstack: CONFIRM of a first contact without the extension")
	case x.Release != t.release:
		return &DeclineError{Code: smc.DiagRelease, Err: fmt.Errorf("client confirms release %d, not %d", x.Release, t.release)}
	case t.release >= wire.ReleaseV21 && x.MaxConns != t.maxConns:
		return &DeclineError{Code: smc.DiagMaxConns, Err: fmt.Errorf("client confirms %d connections, not %d", x.MaxConns, t.maxConns)}
	case t.release >= wire.ReleaseV21 && x.MaxLinks != t.maxLinks:
		return &DeclineError{Code: smc.DiagMaxLinks, Err: fmt.Errorf("client confirms %d links, not %d", x.MaxLinks, t.maxLinks)}
	}
	t.learn(x)
	return nil
}

// describe adds to a listing's row what version 2 has. t may be nil.
func (t *terms) describe(row *nl.LinkGroup) {
	if t == nil {
		return
	}
	row.V2 = &nl.V2Common{
		Version: wire.Version2, Release: t.peerRelease, OS: t.peerOS, EID: t.eid.String(), PeerHost: t.peerHost,
	}
	row.V2R = &nl.V2R{Direct: !t.routed, MaxConns: t.maxConns, MaxLinks: t.maxLinks}
}

// version returns 1 for no terms.
func (t *terms) version() uint8 {
	if t == nil {
		return wire.Version1
	}
	return wire.Version2
}

// subnet returns where the GIDs of the devices are: the zero Prefix for the
// GIDs of version 1.
func (t *terms) subnet() netip.Prefix {
	if t == nil {
		return netip.Prefix{}
	}
	return t.local
}

// answer is ACCEPT or CONFIRM of either version.
type answer struct {
	wire.Endpoint
	version uint8
	first   bool
	eid     wire.EID
	ext     *wire.FirstContactExt
	gids    []smc.GID
}

// answerOf returns nil for another message.
func answerOf(m wire.CLC) *answer {
	switch m := m.(type) {
	case wire.Accept:
		return &answer{version: wire.Version1, Endpoint: m.Endpoint, first: m.FirstContact}
	case wire.Confirm:
		return &answer{version: wire.Version1, Endpoint: m.Endpoint, first: m.FirstContact}
	case wire.AcceptV2:
		return &answer{version: wire.Version2, Endpoint: m.Endpoint, first: m.FirstContact != nil, eid: m.EID, ext: m.FirstContact}
	case wire.ConfirmV2:
		return &answer{version: wire.Version2, Endpoint: m.Endpoint, first: m.FirstContact != nil, eid: m.EID, ext: m.FirstContact, gids: m.GIDs}
	}
	return nil
}

// newAnswer makes our answer; t is nil in version 1. p is our side of the
// connection.
func (s *Stack) newAnswer(t *terms, first bool, p linkgroup.ConnParams) *answer {
	a := &answer{version: t.version(), Endpoint: endpoint(s.peerIDNow(), p), first: first}
	if t == nil {
		return a
	}
	a.eid = t.eid
	if first {
		a.ext = t.ext(s.cfg.Hostname)
	}
	return a
}

func (a *answer) accept() wire.CLC {
	if a.version == wire.Version1 {
		return wire.Accept{FirstContact: a.first, Endpoint: a.Endpoint}
	}
	return wire.AcceptV2{Endpoint: a.Endpoint, EID: a.eid, FirstContact: a.ext}
}

func (a *answer) confirm() wire.CLC {
	if a.version == wire.Version1 {
		return wire.Confirm{FirstContact: a.first, Endpoint: a.Endpoint}
	}
	return wire.ConfirmV2{Endpoint: a.Endpoint, EID: a.eid, FirstContact: a.ext, GIDs: a.gids}
}
