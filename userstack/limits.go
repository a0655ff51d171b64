// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"fmt"
	"math"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"smcr/userstack/driver"
)

// Limits limit what a stack uses, in sum and for each user. A connection that would be above
// a limit stays TCP, with the reason smc.DiagMem. Existing connections do not change. Zero
// means the default, and less than zero means no limit.
//
// Memory counts what each connection may use at most: an RMB element and a send buffer,
// Config.RecvBuf and Config.SendBuf. Most connections use much less.
//
// The limits for each user count connections by owner. They do not apply to root and to the
// user of this process.
type Limits struct {
	// Memory is in bytes. The default is half of the memory of the machine, or of the
	// cgroup of the process if that has less.
	Memory int64
	// UserMemory is in bytes. The default is half of Memory.
	UserMemory int64
	// Conns and UserConns are numbers of connections. By default only memory limits them.
	Conns, UserConns int
	// Groups is the number of link groups, 4096 by default.
	Groups int
}

// defaultGroups is the default of Limits.Groups: one link group for each of so many hosts.
const defaultGroups = 4096

func (l *Limits) setDefaults() error {
	if l.Memory == 0 {
		total, err := memlimit.ApplyFallback(memlimit.FromCgroup, memlimit.FromSystem)()
		if system, serr := memlimit.FromSystem(); serr == nil && (err != nil || system < total) {
			total, err = system, nil
		}
		if err != nil {
			return fmt.Errorf("userstack: how much memory is there: %w: set Limits.Memory", err)
		}
		l.Memory = int64(min(total, math.MaxInt64) / 2)
	}
	if l.UserMemory == 0 && l.Memory > 0 {
		l.UserMemory = l.Memory / 2
	}
	if l.Groups == 0 {
		l.Groups = defaultGroups
	}
	return nil
}

// forDriver converts the limits to those of the driver, where zero means no limit.
func (l *Limits) forDriver() driver.Limits {
	return driver.Limits{
		Memory: max(0, l.Memory), UserMemory: max(0, l.UserMemory),
		Conns: max(0, l.Conns), UserConns: max(0, l.UserConns), Groups: max(0, l.Groups),
	}
}
