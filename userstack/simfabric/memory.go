// SPDX-License-Identifier: Apache-2.0

package simfabric

import (
	"fmt"

	"smcr/rdmaverbs"
)

// pd is a protection domain.
type pd struct {
	w      *World
	dev    *Device
	users  int
	closed bool
}

// Close implements rdmaverbs.PD.
func (p *pd) Close() error {
	p.w.mu.Lock()
	defer p.w.mu.Unlock()
	switch {
	case p.closed:
		return fmt.Errorf("simfabric: protection domain: %w", rdmaverbs.ErrClosed)
	case p.users > 0:
		return fmt.Errorf("simfabric: protection domain has %d objects: %w", p.users, rdmaverbs.ErrBusy)
	}
	p.closed = true
	p.w.count.PDs--
	return nil
}

// RegisterMR implements rdmaverbs.PD.
func (p *pd) RegisterMR(buf []byte, access rdmaverbs.Access) (rdmaverbs.MR, error) {
	if len(buf) == 0 {
		return nil, fmt.Errorf("simfabric: memory region of no bytes: %w", rdmaverbs.ErrInvalid)
	}
	if access&rdmaverbs.AccessRemoteWrite != 0 && access&rdmaverbs.AccessLocalWrite == 0 {
		return nil, fmt.Errorf("simfabric: remote write access needs local write access: %w", rdmaverbs.ErrInvalid)
	}
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.closed {
		return nil, fmt.Errorf("simfabric: protection domain: %w", rdmaverbs.ErrClosed)
	}
	m := &mr{w: w, pd: p, buf: buf, access: access, addr: w.vaddr}
	// Gaps on both sides: an access out of bounds does not reach another region.
	w.vaddr += (uint64(len(buf)) + 0xffff) &^ 0xffff
	w.vaddr += 1 << 20
	for m.key == 0 || w.mrs[m.key] != nil {
		m.key = p.dev.ports[0].rng.Uint32()
	}
	w.mrs[m.key] = m
	w.count.MRs++
	p.users++
	return m, nil
}

// mr is a memory region. Its virtual address is invented.
type mr struct {
	w      *World
	pd     *pd
	buf    []byte
	addr   uint64
	key    uint32
	access rdmaverbs.Access
	closed bool
}

// LKey implements rdmaverbs.MR.
func (m *mr) LKey() uint32 { return m.key }

// RKey implements rdmaverbs.MR.
func (m *mr) RKey() uint32 { return m.key }

// Addr implements rdmaverbs.MR.
func (m *mr) Addr() uint64 { return m.addr }

// Len implements rdmaverbs.MR.
func (m *mr) Len() int { return len(m.buf) }

// Close implements rdmaverbs.MR.
func (m *mr) Close() error {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if m.closed {
		return fmt.Errorf("simfabric: memory region %#x: %w", m.key, rdmaverbs.ErrClosed)
	}
	m.closed = true
	delete(m.w.mrs, m.key)
	m.w.count.MRs--
	m.pd.users--
	m.buf = nil
	return nil
}

// slice returns n bytes at virtual address addr, if they are in the region.
func (m *mr) slice(addr uint64, n int) ([]byte, bool) {
	off := addr - m.addr
	if addr < m.addr || off > uint64(len(m.buf)) || uint64(n) > uint64(len(m.buf))-off {
		return nil, false
	}
	return m.buf[off : off+uint64(n)], true
}

// cq is a completion queue without a limit.
type cq struct {
	w      *World
	dev    *Device
	notify func()
	on     *watch // belongs to the loop of the device
	wcs    []rdmaverbs.WC
	qps    int
	closed bool
}

// push adds a completion; w.unlock calls notify. mu is held.
func (c *cq) push(wc rdmaverbs.WC) {
	c.wcs = append(c.wcs, wc)
	if len(c.wcs) == 1 && c.notify != nil {
		c.w.notify = append(c.w.notify, notice{c.notify, c.on})
	}
}

// Poll implements rdmaverbs.CQ.
func (c *cq) Poll(wc []rdmaverbs.WC) int {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	n := copy(wc, c.wcs)
	c.wcs = c.wcs[:copy(c.wcs, c.wcs[n:])]
	return n
}

// Close implements rdmaverbs.CQ.
func (c *cq) Close() error {
	c.w.mu.Lock()
	defer c.w.mu.Unlock()
	switch {
	case c.closed:
		return fmt.Errorf("simfabric: completion queue: %w", rdmaverbs.ErrClosed)
	case c.qps > 0:
		return fmt.Errorf("simfabric: completion queue serves %d queues: %w", c.qps, rdmaverbs.ErrBusy)
	}
	c.closed = true
	c.wcs = nil
	c.w.count.CQs--
	return nil
}
