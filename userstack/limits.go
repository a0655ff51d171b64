// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"fmt"
	"math"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"smcr/userstack/driver"
)

// Limits bound what a stack takes, in sum and for each user. A connection that would be above
// a limit stays TCP, with the reason smc.DiagMem; connections that exist go on. Zero means the
// default, and less than zero no limit.
//
// Memory is counted by what connections may use at most: an RMB element and a send buffer
// for each, Config.RecvBuf and Config.SendBuf. Most connections take a small part of it.
//
// The limits of a user hold for the owners of connections, except for root and the user of
// the process.
type Limits struct {
	// Memory is in bytes. The default is half of the memory of the machine, or of the
	// cgroup of the process if that has less.
	Memory int64
	// UserMemory is in bytes. The default is half of Memory.
	UserMemory int64
	// Conns and UserConns are numbers of connections. By default there is no limit but
	// that of memory.
	Conns, UserConns int
	// Groups is the number of link groups, 4096 by default.
	Groups int
}

// defaultGroups is the default of Limits.Groups: one each for that many hosts.
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

// forDriver returns the limits in the form of the driver, in which zero is no limit.
func (l *Limits) forDriver() driver.Limits {
	return driver.Limits{
		Memory: max(0, l.Memory), UserMemory: max(0, l.UserMemory),
		Conns: max(0, l.Conns), UserConns: max(0, l.UserConns), Groups: max(0, l.Groups),
	}
}
