// SPDX-License-Identifier: Apache-2.0

package linkgroup

import "time"

// maxTrim is how many buffers one call of [Group.Trim] gives back at most. Each
// costs some microseconds, and the driver's lock is held meanwhile.
const maxTrim = 16

// Trimmable says that [Group.Trim] may have something to give back, now or later.
func (g *Group) Trimmable() bool { return !g.dead && g.resting > 0 }

// Trim gives back the memory of RMB elements that have had no connection for the
// time idle. again tells that there is more to be done at once. The memory of an
// element in use is not touched: the peer may write to all of it but what waits to
// be read, and tells only afterwards.
func (g *Group) Trim(now time.Time, idle time.Duration) (again bool) {
	if len(g.actions) == 0 {
		g.actions = nil
	}
	return g.Trimmable() && g.trimElements(now, idle, maxTrim) == 0
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
