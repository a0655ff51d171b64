// SPDX-License-Identifier: Apache-2.0

package linkgroup

import "time"

// maxTrim is how many buffers one call of [Group.Trim] gives back at most. Each
// costs some microseconds, and the driver's lock is held meanwhile.
const maxTrim = 16

// heat notes that the connection uses its memory.
func (c *Conn) heat() {
	if !c.warm {
		c.warm = true
		c.g.warm++
	}
}

func (c *Conn) cool() {
	if c.warm {
		c.warm = false
		c.g.warm--
	}
}

// Trimmable says that [Group.Trim] may have something to give back, now or later.
func (g *Group) Trimmable() bool { return !g.dead && g.warm+g.resting > 0 }

// Trim gives back the memory of what has not been used for the time idle: RMB
// elements without a connection, and the send buffers of connections that wait
// for the program or for the peer to say something. again tells that there is
// more to be done at once. The memory of an RMB element in use is not touched:
// the peer may write to all of it but what waits to be read, and tells only
// afterwards.
func (g *Group) Trim(now time.Time, idle time.Duration) (again bool) {
	if !g.Trimmable() {
		return false
	}
	if len(g.actions) == 0 {
		g.actions = nil
	}
	budget := maxTrim
	if g.resting > 0 {
		budget = g.trimElements(now, idle, budget)
	}
	if g.warm == 0 || budget == 0 {
		return budget == 0
	}
	for _, c := range g.conns {
		if !c.warm || now.Sub(c.active) < idle {
			continue
		}
		if budget == 0 {
			return true
		}
		c.cool()
		if c.drained() {
			g.env.TrimSendBuf(c)
			budget--
		}
	}
	return false
}

// trimElements gives back elements that are not in use, neighbours together, and
// returns what is left of the budget.
func (g *Group) trimElements(now time.Time, idle time.Duration, budget int) int {
	resting := 0
	for _, r := range g.rmbs {
		from := 0 // the first of those to be given back, up to element i
		give := func(to int) {
			if from < to {
				g.env.TrimRMB(r.handle, from*r.size, (to-from)*r.size)
				budget--
			}
			from = to + 1
		}
		for i := range r.elems {
			e := &r.elems[i]
			switch {
			case e.used || !e.dirty || e.trimmed:
				give(i)
			case now.Sub(e.freed) < idle || budget == 0:
				give(i)
				resting++
			default:
				e.trimmed = true
			}
		}
		give(len(r.elems))
	}
	g.resting = resting
	return budget
}
