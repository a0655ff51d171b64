// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"fmt"
	"time"

	"smcr/smc"
)

// MaxLinks is the largest number of symmetric links of a group (RFC 7609,
// section 2.2.2).
const MaxLinks = 8

const (
	// maxSlots bounds the links that exist at one time: the symmetric ones,
	// the asymmetric one and one that is being deleted (RFC 7609, section
	// 2.2.2).
	maxSlots = MaxLinks + 2
	// maxRMBs bounds the RMBs of each side: ADD LINK CONTINUATION counts
	// them in one byte.
	maxRMBs = 255
	// maxLost bounds the RMBEs of an owner that are lost to a peer.
	maxLost = 32
	// maxResting bounds the RMBs of an owner of which no element is in use and
	// none may be used yet: handshakes that were begun and given up take no more.
	maxResting = maxRMBs / 4
	// maxSharedRMB is the size in bytes up to which an RMB is shared.
	maxSharedRMB = 4 << 20
	// maxSizeCode is the largest RMBE size code, 512 MiB.
	maxSizeCode = smc.MaxSizeCode
)

// rmbState is what the peer knows of an RMB.
type rmbState uint8

const (
	rmbNew      rmbState = iota // nothing yet
	rmbKnown                    // its RTokens on all links
	rmbDeleting                 // DELETE RKEY is queued or under way
)

// rmb is a local RMB, cut into elements of one size.
type rmb struct {
	mem    []byte
	handle any
	code   smc.SizeCode
	size   int // of an element
	owner  uint32
	elems  []element
	inUse  int
	state  rmbState
	at     [maxSlots]slotToken
	// waiting are the connections that need it known.
	waiting []*Conn
	idleAt  time.Time // when it is deleted, zero while in use
}

// slotToken is the RToken of an RMB on the link of one slot. A reference
// RKey of ADD LINK CONTINUATION may come without the address.
type slotToken struct {
	ok, noAddr bool
	smc.RToken
}

type element struct {
	used bool
	// dirty: it has been used before. A fresh one is zero as it came, and
	// memory that nobody writes to is never touched.
	dirty bool
	// trimmed: its memory was given back since it was used. The peer may have
	// written to it after that.
	trimmed bool
	// lost: the peer may still write to it, nobody knows for how long.
	lost bool
	// notBefore is when it may be used again.
	notBefore time.Time
	freed     time.Time // when its last connection left it
}

func (r *rmb) mem0(i int) []byte { return r.mem[i*r.size : (i+1)*r.size : (i+1)*r.size] }

// newRMB allocates an RMB and registers it on the links that exist.
func (g *Group) newRMB(owner uint32, code smc.SizeCode) (*rmb, error) {
	if len(g.rmbs) >= maxRMBs {
		return nil, fmt.Errorf("%w: %d RMBs", ErrFull, maxRMBs)
	}
	size := smc.SizeCode(code).Bytes()
	n := max(1, min(g.cfg.RMBEsPerRMB, maxSharedRMB/size))
	mem, handle, err := g.env.NewRMB(n * size)
	if err != nil {
		return nil, fmt.Errorf("linkgroup: allocate an RMB of %d bytes: %w", n*size, err)
	}
	r := &rmb{mem: mem, handle: handle, owner: owner, code: code, size: size, elems: make([]element, n)}
	for _, l := range g.links {
		if !l.qpOpen || l.state == smc.LinkInactive {
			continue
		}
		if err := g.register(r, l); err != nil {
			g.env.FreeRMB(handle)
			return nil, err
		}
	}
	g.rmbs = append(g.rmbs, r)
	return r, nil
}

func (g *Group) register(r *rmb, l *Link) error {
	if r.at[l.slot].ok {
		return nil
	}
	rkey, addr, err := g.env.RegisterRMB(r.handle, l)
	if err != nil {
		return fmt.Errorf("linkgroup: register an RMB on %s: %w", l.dev.Name, err)
	}
	r.at[l.slot] = slotToken{ok: true, RToken: smc.RToken{RKey: rkey, Addr: addr}}
	return nil
}

func (g *Group) deregister(l *Link) {
	for _, r := range g.rmbs {
		if r.at[l.slot].ok {
			g.env.DeregisterRMB(r.handle, l)
			r.at[l.slot] = slotToken{}
		}
	}
}

// takeElement finds a free element of the size class in an RMB of the owner, in a new
// one if need be. RMBs that the peer knows come first, so that most connections need no
// CONFIRM RKEY.
func (g *Group) takeElement(now time.Time, owner uint32, code smc.SizeCode) (*rmb, int, error) {
	for _, want := range []rmbState{rmbKnown, rmbNew} {
		for _, r := range g.rmbs {
			if r.owner != owner || r.code != code || r.state != want {
				continue
			}
			for i := range r.elems {
				if e := &r.elems[i]; !e.used && !e.lost && !now.Before(e.notBefore) {
					g.useElement(r, i)
					return r, i, nil
				}
			}
		}
	}
	if g.restingRMBs(owner) >= maxResting {
		return nil, 0, fmt.Errorf("%w: %d RMBs without a connection that wait to be used again", ErrFull, maxResting)
	}
	r, err := g.newRMB(owner, code)
	if err != nil {
		return nil, 0, err
	}
	g.useElement(r, 0)
	return r, 0, nil
}

// restingRMBs counts the RMBs of an owner that no connection uses.
func (g *Group) restingRMBs(owner uint32) (n int) {
	for _, r := range g.rmbs {
		if r.owner == owner && r.inUse == 0 {
			n++
		}
	}
	return n
}

func (g *Group) useElement(r *rmb, i int) {
	r.elems[i].used = true
	r.inUse++
	r.idleAt = time.Time{}
	// Nothing of an earlier connection may show up in this one.
	if r.elems[i].dirty {
		g.env.ZeroRMB(r.handle, i*r.size, r.size)
	}
	r.elems[i].dirty, r.elems[i].trimmed = true, false
}

// putElement takes an element back.
func (g *Group) putElement(r *rmb, i int, notBefore time.Time) {
	e := &r.elems[i]
	e.used, e.notBefore, e.freed = false, notBefore, g.now
	g.resting++
	r.inUse--
	if r.inUse > 0 {
		return
	}
	if g.dead {
		g.freeRMB(r)
		return
	}
	if !r.hasLost() {
		r.idleAt = g.now.Add(g.cfg.Timers.RMBIdle)
	}
}

// lose counts an element of r that the peer may still write to.
func (g *Group) lose(r *rmb) {
	if g.lost == nil {
		g.lost = map[uint32]int{}
	}
	g.lost[r.owner]++
	g.lostAll++
}

func (r *rmb) hasLost() bool {
	for i := range r.elems {
		if r.elems[i].lost {
			return true
		}
	}
	return false
}

// freeRMB forgets an RMB that no link makes writable any more, or that the
// peer has forgotten.
func (g *Group) freeRMB(r *rmb) {
	for i, o := range g.rmbs {
		if o == r {
			g.rmbs = append(g.rmbs[:i], g.rmbs[i+1:]...)
			break
		}
	}
	for _, l := range g.links {
		if r.at[l.slot].ok {
			g.env.DeregisterRMB(r.handle, l)
			r.at[l.slot] = slotToken{}
		}
	}
	g.env.FreeRMB(r.handle)
	r.mem = nil
}

// rtoken is an RMB of the peer, as known on each link.
type rtoken struct {
	at    [maxSlots]slotToken
	conns int
}

// on says that the RMB can be written to over l.
func (t *rtoken) on(l *Link) bool { return t.at[l.slot].ok && !t.at[l.slot].noAddr }

// findPeerRMB returns the link and the RMB that ACCEPT or CONFIRM names. The link is
// nil if it was removed while CONFIRM was under way. A client that gets such an
// ACCEPT declines: a Linux server does not move a connection that is not open yet.
//
// The connection of a first contact tells its RMB by CLC, and by nothing else if
// there is one link. Any other RMB the peer has to tell on all links by CONFIRM
// RKEY before (RFC 7609, section 3.5.5.2.1), so that CLC names nothing new; Linux
// does so too. Anybody who can make a TCP connection says such things by CLC, but
// only the peer has the queue pair.
func (g *Group) findPeerRMB(peer ConnParams, first bool) (on *Link, t *rtoken, err error) {
	on = g.links[0]
	if g.phase == phaseOpen {
		on = g.linkTo(peer.Link)
	}
	if on == nil {
		if p := g.pastLinkTo(peer.Link); p != nil && g.cfg.Role == smc.Server {
			t = p.rmbs[peer.RKey]
		}
		if t == nil {
			return nil, nil, fmt.Errorf("%w to queue pair %s", ErrNoLink, peer.Link.QPN)
		}
		g.log.Info("CONFIRM names a link that has since failed", "peerqpn", peer.Link.QPN)
		return nil, t, nil
	}
	if t = g.findRToken(on, peer.RKey); t == nil {
		if !first || g.redundant(on) {
			return nil, nil, fmt.Errorf("%w: %s on link %d", ErrUnknownRKey, peer.RKey, on.id)
		}
		if t = g.addRToken(on, smc.RToken{RKey: peer.RKey, Addr: peer.VAddr}, false); t == nil {
			return nil, nil, fmt.Errorf("%w: %d RMBs of the peer", ErrFull, maxRMBs)
		}
	}
	switch at := &t.at[on.slot]; {
	case at.noAddr && first:
		at.noAddr, at.Addr = false, peer.VAddr
	case at.noAddr, at.Addr != peer.VAddr && !first:
		return nil, nil, fmt.Errorf("%w: %s at %#x on link %d", ErrUnknownRKey, peer.RKey, peer.VAddr, on.id)
	}
	return on, t, nil
}

// linkWith returns the active link with the fewest connections over which an RMB
// of the peer can be written to, or nil.
func (g *Group) linkWith(t *rtoken) *Link {
	return g.leastUsed(t.on)
}

func (g *Group) findRToken(l *Link, rkey smc.RKey) *rtoken {
	for _, t := range g.rtokens {
		if t.at[l.slot].ok && t.at[l.slot].RKey == rkey {
			return t
		}
	}
	return nil
}

// addRToken returns the entry of an RMB, made if the peer has room for it.
func (g *Group) addRToken(l *Link, k smc.RToken, noAddr bool) *rtoken {
	t := g.findRToken(l, k.RKey)
	if t == nil {
		if len(g.rtokens) >= maxRMBs {
			return nil
		}
		t = &rtoken{}
		g.rtokens = append(g.rtokens, t)
		t.at[l.slot] = slotToken{ok: true, noAddr: noAddr, RToken: k}
		return t
	}
	if !noAddr {
		t.at[l.slot] = slotToken{ok: true, RToken: k}
	}
	return t
}

func (g *Group) dropRToken(t *rtoken) {
	for i, o := range g.rtokens {
		if o == t {
			g.rtokens = append(g.rtokens[:i], g.rtokens[i+1:]...)
			g.forgetPast(t)
			return
		}
	}
}
