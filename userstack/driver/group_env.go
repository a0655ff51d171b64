// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"fmt"

	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack/conn"
	"smcr/userstack/linkgroup"
)

// groupEnv is the core's view of its driver. Its methods run with mu held.
type groupEnv Group

var _ linkgroup.Env = (*groupEnv)(nil)

func (e *groupEnv) Random() uint32 { return e.s.Random() }

// NewQP implements linkgroup.Env.
func (e *groupEnv) NewQP(cl *linkgroup.Link, d linkgroup.Device) (linkgroup.Endpoint, error) {
	port := e.s.Devices.Port(d.ID)
	if port == nil {
		return linkgroup.Endpoint{}, fmt.Errorf("device %s is gone", d.Name)
	}
	l := &link{core: cl, port: port, pool: e.s.pool, terms: e.terms, subnet: e.terms.Subnet(), stall: e.s.StallTime}
	if d.Subnet.IsValid() {
		l.subnet = d.Subnet
	}
	made := false
	defer func() {
		if !made { // also after a panic
			l.destroy()
		}
	}()
	g := (*Group)(e)
	ep, err := l.create(&e.mem, g.onComplete, e.s.Random, e.s.Trace.Packets(), uint64(g.ID()))
	if err != nil {
		return linkgroup.Endpoint{}, fmt.Errorf("create a queue pair on %s: %w", port.Name(), err)
	}
	made, l.init = true, ep
	cl.Data = l
	e.links = append(e.links, l)
	return ep, nil
}

// ConnectQP implements linkgroup.Env.
func (e *groupEnv) ConnectQP(cl *linkgroup.Link, peer linkgroup.Endpoint, mtu smc.MTU) error {
	l := cl.Data.(*link)
	l.peer = peer
	l.mtu = mtu
	return l.qp.ToRTR(l.path())
}

// ReadyQP implements linkgroup.Env.
func (e *groupEnv) ReadyQP(cl *linkgroup.Link) error {
	l := cl.Data.(*link)
	return l.qp.ToRTS(l.path())
}

// CloseQP implements linkgroup.Env.
func (e *groupEnv) CloseQP(cl *linkgroup.Link) {
	l, _ := cl.Data.(*link)
	if l == nil || l.gone.Swap(true) {
		return
	}
	if err := l.qp.Close(); err != nil {
		e.log.Warn("close queue pair", "err", err)
	}
	for {
		n := l.cq.Poll(e.exec.wc2[:])
		if n == 0 {
			break
		}
		for _, wc := range e.exec.wc2[:n] {
			if wc.Status == rdmaverbs.StatusSuccess && wc.ID&tokenFlag == 0 {
				e.leftover = append(e.leftover, leftover{cl, append([]byte(nil), l.message(int(wc.ID), wc.Len)...)})
				e.pollWanted.Store(true)
			}
		}
	}
	for i, o := range e.links {
		if o == l {
			e.links = append(e.links[:i], e.links[i+1:]...)
			break
		}
	}
	e.exec.after(l.destroy)
}

// NewRMB implements linkgroup.Env.
func (e *groupEnv) NewRMB(size int) ([]byte, any, error) {
	r, err := e.mem.newRMB(size)
	if err != nil {
		return nil, nil, err
	}
	return r.mem, r, nil
}

// RegisterRMB implements linkgroup.Env.
func (e *groupEnv) RegisterRMB(h any, cl *linkgroup.Link) (smc.RKey, uint64, error) {
	r, l := h.(*region), cl.Data.(*link)
	pd, err := e.mem.pd(l.port.Device())
	if err != nil {
		return 0, 0, err
	}
	mr, err := pd.RegisterMR(r.mem, rdmaverbs.AccessLocalWrite|rdmaverbs.AccessRemoteWrite)
	if err != nil {
		return 0, 0, err
	}
	r.lnk[cl] = mr
	return smc.RKey(mr.RKey()), mr.Addr(), nil
}

// DeregisterRMB implements linkgroup.Env.
func (e *groupEnv) DeregisterRMB(h any, cl *linkgroup.Link) {
	r := h.(*region)
	if mr := r.lnk[cl]; mr != nil {
		delete(r.lnk, cl)
		_ = mr.Close()
	}
}

// FreeRMB implements linkgroup.Env.
func (e *groupEnv) FreeRMB(h any) { e.mem.freeRMB(h.(*region)) }

// ZeroRMB implements linkgroup.Env.
func (e *groupEnv) ZeroRMB(h any, off, n int) { rdmaverbs.ZeroBuffer(h.(*region).mem[off:][:n]) }

// TrimRMB implements linkgroup.Env.
func (e *groupEnv) TrimRMB(h any, off, n int) {
	r := h.(*region)
	for cl := range r.lnk {
		if l, _ := cl.Data.(*link); l == nil || !l.port.Device().OnDemandPaging() {
			return
		}
	}
	_ = rdmaverbs.DiscardBuffer(r.mem[off:][:n]) // without it, the pages stay
}

// NewChunk implements linkgroup.Env.
func (e *groupEnv) NewChunk(size int) (*conn.Chunk, error) { return e.mem.takeChunk(size) }

// FreeChunk implements linkgroup.Env.
func (e *groupEnv) FreeChunk(c *conn.Chunk) {
	k := c.Data.(*slabChunk)
	switch {
	case e.end.broken: // freed with all others
	case e.end.dead:
		e.mem.returnChunk(k)
	default:
		e.mem.slab.putBack(k)
		e.s.trim.poke()
	}
}
