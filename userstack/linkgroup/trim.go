// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"time"
)

// maxTrim is how many buffers one call of [Group.Trim] gives back at most. Each
// costs some microseconds, and the driver holds its lock during this time.
const maxTrim = 16

// Trimmable reports whether [Group.Trim] may have something to give back, now or later.
func (g *Group) Trimmable() bool { return g.phase != phaseDead && g.rmbs.idle > 0 }

// Trim gives back the memory of RMB elements that have had no connection for the
// time idle. again reports that there is more to do at once. The memory of an
// element in use is not touched: the peer may write to every byte of it that does not
// wait to be read, and announces the write only afterwards.
func (g *Group) Trim(now time.Time, idle time.Duration) (again bool) {
	if len(g.actions.list) == 0 {
		g.actions.list = nil
	}
	return g.Trimmable() && g.rmbs.trim(now, idle, maxTrim) == 0
}
