// SPDX-License-Identifier: Apache-2.0

package driver

import "time"

// trimGroup frees memory that the group has not used for a while.
func trimGroup(g *Group, now time.Time) (later bool) {
	for again := true; again; {
		again = false
		g.mu.Lock()
		g.call(func() {
			if g.end.dead {
				return
			}
			if !g.exec.running {
				g.exec.forget() // they point to connections that have ended
			}
			again = g.core.Trim(now, trimAfter) || g.mem.slab.trim(now, g.mem.dropRegion)
			later = g.core.Trimmable() || g.mem.slab.hot > 0
		})
		g.unlock()
	}
	return later
}
