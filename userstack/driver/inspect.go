// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"net/netip"
	"time"

	"smcr/userstack/linkgroup"
)

// Functions for tests of whole stacks.

// MemoryInUse returns how many bytes of registered memory are in use.
func (d *Driver) MemoryInUse() int { return d.s.pool.InUse() }

// MemoryKept returns the buffers that are mapped and not in use.
func (d *Driver) MemoryKept() [][]byte { return d.s.pool.Kept() }

// Ending returns how many link groups have ended and have not released everything yet.
func (d *Driver) Ending() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.ending)
}

// View calls f with the protocol core, with the group locked, and carries out the resulting
// actions. A panic in f ends the group, like a panic of the core.
func (g *Group) View(f func(core *linkgroup.Group)) {
	g.do(func(time.Time) { f(g.core) })
}

// Peer returns the address of the peer of the first connection, or the zero Addr.
func (g *Group) Peer() netip.Addr {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.peerAddr
}

// View calls f with the protocol core of the connection, with its link group locked, and
// carries out the resulting actions.
func (c *Conn) View(f func(core *linkgroup.Conn)) {
	c.g.do(func(time.Time) { f(c.core) })
}

// Available returns how many bytes can be read now.
func (r *Reader) Available() (n int, err error) {
	g := r.c.g
	g.mu.Lock()
	defer g.unlock()
	a, b, err := r.readable()
	return len(a) + len(b), err
}

// Available returns how many bytes can be written now.
func (w *Writer) Available() (n int, err error) {
	g := w.c.g
	g.mu.Lock()
	defer g.unlock()
	a, b, err := w.reserve(w.c.core.SendSize(), 0)
	w.dropSpace()
	return len(a) + len(b), err
}
