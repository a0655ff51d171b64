// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"time"

	"smcr/rdmaverbs"
	"smcr/stats"
	"smcr/userstack/linkgroup"
)

// poll takes all completions and passes them to the core. mu is held.
func (g *Group) poll() {
	defer g.caught()
	if g.end.broken {
		return
	}
	for len(g.leftover) > 0 {
		m := g.leftover[0]
		g.leftover = g.leftover[1:]
		if g.s.Trace.On() {
			showMessage(g, m.link, m.msg, false)
		}
		g.core.Received(time.Now(), m.link, m.msg)
	}
	for i := 0; i < len(g.links); i++ {
		l := g.links[i]
		if l.gone.Load() {
			continue
		}
		for {
			n := l.cq.Poll(g.exec.wc[:])
			if n == 0 {
				break
			}
			now := time.Now()
			for j := range g.exec.wc[:n] {
				g.complete(now, l, &g.exec.wc[j])
			}
			if l.gone.Load() {
				break
			}
		}
	}
}

// complete handles one work completion. mu is held.
func (g *Group) complete(now time.Time, l *link, wc *rdmaverbs.WC) {
	if wc.Status != rdmaverbs.StatusSuccess {
		if !l.gone.Load() {
			g.core.LinkFailed(now, l.core, wc.Status.Err())
		}
		return
	}
	if wc.ID&tokenFlag != 0 {
		if t := wc.ID &^ tokenFlag; t != 0 && !l.gone.Load() {
			g.core.Sent(now, l.core, t)
		}
		return
	}
	slot := int(wc.ID)
	msg := l.message(slot, wc.Len)
	if g.s.Trace.On() {
		showMessage(g, l.core, msg, false)
	}
	g.core.Received(now, l.core, msg)
	if l.gone.Load() {
		return
	}
	g.exec.rwr[0] = l.recvWR(slot)
	if _, err := l.qp.PostRecv(g.exec.rwr[:]...); err != nil {
		g.core.LinkFailed(now, l.core, err)
	}
}

// execute carries out actions in order. Consecutive work requests for one link are posted
// together. mu is not held.
func (g *Group) execute(acts []linkgroup.Action) {
	defer g.fell()
	var on *link
	g.exec.wrs = g.exec.wrs[:0]
	flush := func() {
		if len(g.exec.wrs) == 0 {
			return
		}
		if on != nil && !on.gone.Load() {
			if _, err := on.qp.PostSend(g.exec.wrs...); err != nil && !on.gone.Load() {
				g.log.Debug("post failed", "link", on.core.ID(), "err", err)
				g.lostLink(on, err)
			}
		}
		clear(g.exec.wrs) // they point to actions, which name connections
		g.exec.wrs = g.exec.wrs[:0]
	}
	for i := range acts {
		a := &acts[i]
		switch a.Kind {
		case linkgroup.ActSend, linkgroup.ActWrite:
			if a.PeerFull {
				g.s.Stats.Buffer(stats.TX, stats.FullPeer)
			}
			l, _ := a.Link.Data.(*link)
			if l == nil || l.gone.Load() {
				continue
			}
			if l != on {
				flush()
				on = l
			}
			wr, err := g.workRequest(l, a)
			if err != nil {
				g.log.Error("no memory region for send memory", "err", err)
				g.lostLink(l, err)
				continue
			}
			if a.Kind == linkgroup.ActSend && g.s.Trace.On() {
				showMessage(g, a.Link, a.Message(), true)
			}
			g.exec.wrs = append(g.exec.wrs, wr)
		default:
			flush()
			g.notify(a)
		}
	}
	flush()
}

// lostLink tells the core about a link that accepts no work request. mu is not held. The
// caller carries out the resulting actions.
func (g *Group) lostLink(l *link, err error) {
	g.mu.Lock()
	if !g.end.dead && !l.gone.Load() {
		g.call(func() { g.core.LinkFailed(time.Now(), l.core, err) })
	}
	g.mu.Unlock()
}

// workRequest returns the work request of an action. mu is not held.
func (g *Group) workRequest(l *link, a *linkgroup.Action) (rdmaverbs.SendWR, error) {
	wr := rdmaverbs.SendWR{ID: a.Token | tokenFlag}
	if a.Token != 0 {
		wr.Flags |= rdmaverbs.Signaled
	}
	if a.Kind == linkgroup.ActSend {
		wr.Op = rdmaverbs.OpSend
		wr.Flags |= rdmaverbs.Solicited
		if len(a.Long) > maxInline && l.more != nil {
			wr.SG[0] = l.more.send(a.Long)
			return wr, nil
		}
		wr.Flags |= rdmaverbs.Inline
		wr.InlineData = a.Message()
		return wr, nil
	}
	if p, ok := a.Chunk.Data.(linkgroup.RMBPart); ok {
		g.mu.Lock()
		mr := p.Handle.(*region).lnk[a.Link]
		g.mu.Unlock()
		if mr == nil {
			return wr, errNoRegion
		}
		setWrite(&wr, a, rdmaverbs.SGE{MR: mr, Off: p.Off + a.Off, Len: a.Len})
		return wr, nil
	}
	k := a.Chunk.Data.(*slabChunk)
	mr := k.r.registration(l.port.Device())
	if mr == nil {
		var err error
		if mr, err = g.register(l, k.r); err != nil {
			return wr, err
		}
	}
	setWrite(&wr, a, rdmaverbs.SGE{MR: mr, Off: k.off + a.Off, Len: a.Len})
	return wr, nil
}

// errNoRegion means that an RMB is not registered on a link.
var errNoRegion = errors.New("the RMB is not registered")

// setWrite makes wr an RDMA WRITE of the bytes of from.
func setWrite(wr *rdmaverbs.SendWR, a *linkgroup.Action, from rdmaverbs.SGE) {
	wr.Op, wr.SG[0] = rdmaverbs.OpWrite, from
	wr.RemoteAddr, wr.RKey = a.RemoteAddr, uint32(a.RKey)
}

// register registers send memory with the device of a link. mu is not held.
func (g *Group) register(l *link, r *region) (rdmaverbs.MR, error) {
	dev := l.port.Device()
	g.mu.Lock()
	pd, err := g.mem.pd(dev)
	g.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return r.register(dev, pd)
}
