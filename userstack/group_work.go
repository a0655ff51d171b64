// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"time"

	"smcr/rdmaverbs"
	"smcr/stats"
	"smcr/userstack/linkgroup"
)

// tokenFlag marks work request ids of the send side.
const tokenFlag = 1 << 63

// leftover is a message that had arrived on a link before it was closed. The
// core wants to know: what it acknowledged to the peer must not be lost.
type leftover struct {
	link *linkgroup.Link
	msg  []byte
}

// poll takes all completions and hands them to the core. mu is held.
func (g *group) poll() {
	defer g.caught()
	if g.end.broken {
		return
	}
	for len(g.leftover) > 0 {
		m := g.leftover[0]
		g.leftover = g.leftover[1:]
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
				l.complete(now, &g.exec.wc[j])
			}
			if l.gone.Load() {
				break
			}
		}
	}
}

// complete handles one work completion. g.mu is held.
func (l *link) complete(now time.Time, wc *rdmaverbs.WC) {
	g := l.g
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
	g.core.Received(now, l.core, l.message(slot, wc.Len))
	if l.gone.Load() {
		return
	}
	if _, err := l.qp.PostRecv(l.recvWR(slot)); err != nil {
		g.core.LinkFailed(now, l.core, err)
	}
}

// execute carries out actions in order; mu is not held. Runs of work
// requests for one link are posted together.
func (g *group) execute(acts []linkgroup.Action) {
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
		g.exec.wrs = g.exec.wrs[:0]
	}
	for i := range acts {
		a := &acts[i]
		switch a.Kind {
		case linkgroup.ActSend, linkgroup.ActWrite:
			if a.PeerFull {
				g.s.stats.Buffer(stats.TX, stats.FullPeer)
			}
			l, _ := a.Link.Data.(*link)
			if l == nil || l.gone.Load() {
				continue
			}
			if l != on {
				flush()
				on = l
			}
			wr, err := l.workRequest(a)
			if err != nil {
				g.log.Error("no memory region for send memory", "err", err)
				g.lostLink(l, err)
				continue
			}
			g.exec.wrs = append(g.exec.wrs, wr)
		default:
			flush()
			g.notify(a)
		}
	}
	flush()
}

// lostLink tells the core of a link that takes no work request. mu is not held;
// the executor's loop takes what follows.
func (g *group) lostLink(l *link, err error) {
	g.mu.Lock()
	if !g.end.dead && !l.gone.Load() {
		g.call(func() { g.core.LinkFailed(time.Now(), l.core, err) })
	}
	g.mu.Unlock()
}

func (l *link) workRequest(a *linkgroup.Action) (rdmaverbs.SendWR, error) {
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
	k := a.Chunk.Data.(*slabChunk)
	mr := k.r.registration(l.port.Device())
	if mr == nil {
		var err error
		if mr, err = l.register(k.r); err != nil {
			return wr, err
		}
	}
	wr.Op = rdmaverbs.OpWrite
	wr.SG[0] = rdmaverbs.SGE{MR: mr, Off: k.off + a.Off, Len: a.Len}
	wr.RemoteAddr, wr.RKey = a.RemoteAddr, uint32(a.RKey)
	return wr, nil
}

// register registers send memory with the link's device. mu is not held.
func (l *link) register(r *region) (rdmaverbs.MR, error) {
	dev := l.port.Device()
	l.g.mu.Lock()
	pd, err := l.g.mem.pd(dev)
	l.g.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return r.register(dev, pd)
}

// notify tells waiters what happened.
func (g *group) notify(a *linkgroup.Action) {
	switch a.Kind {
	case linkgroup.ActWakeRead:
		if c, _ := a.Conn.Data.(*Conn); c != nil {
			wake(c.in.wake)
			c.kick()
		}
	case linkgroup.ActWakeWrite:
		if c, _ := a.Conn.Data.(*Conn); c != nil {
			wake(c.out.wake)
			c.kick()
		}
	case linkgroup.ActWakeUrgent:
		if c, _ := a.Conn.Data.(*Conn); c != nil {
			wake(c.uwake)
			// WriteTo takes the byte although no data is behind it.
			wake(c.in.wake)
			c.kick()
		}
	case linkgroup.ActConnReady:
		if c, _ := a.Conn.Data.(*Conn); c != nil {
			c.ready <- a.Err
		}
	case linkgroup.ActFirstLink:
		select {
		case g.first <- a.Err:
		default:
		}
	case linkgroup.ActConnClosed:
		if c, _ := a.Conn.Data.(*Conn); c != nil {
			c.end.ended(a.Err)
		}
	case linkgroup.ActGroupDead:
		g.onDead(a.Err)
	}
}

func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
