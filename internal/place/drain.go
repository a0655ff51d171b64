// SPDX-License-Identifier: Apache-2.0

package place

import "time"

// A Drain is a stack that has handed over and still has connections.
type Drain struct {
	Name  string // as of [Ending]
	PID   int    // in its own PID namespace
	Since time.Time
	Until time.Time // when it ends at the latest; zero means never
}
