// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"fmt"
	"sync"

	"smcr/quota"
	"smcr/smc"
)

// Limits limit what the link groups of a stack use, in sum and for each user. Zero means no
// limit. A connection above a limit is declined with a *LimitError, and its program uses TCP.
// Existing connections do not change.
//
// Memory counts what a connection may use at most: its RMB element and its send buffer. So an
// existing connection always gets send memory. The memory that is really mapped and written
// to is less.
type Limits struct {
	Memory     int64 // bytes, of all connections together
	UserMemory int64 // bytes, of the connections of one user
	Conns      int   // connections
	UserConns  int   // connections of one user
	Groups     int   // link groups, also those that have ended and still have memory
}

// LimitError means that a limit of the stack has been reached.
type LimitError struct {
	What string // what would be above the limit: "connections of user 1000", for example
	Max  int64
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("userstack: limit of the stack: %d %s", e.Max, e.What)
}

// accounts counts what connections may use, for each user. The zero value has no limits.
type accounts struct {
	max Limits
	// exempt is a user without limits, besides root: the user of this process.
	exempt uint32

	mu    sync.Mutex
	all   account
	users map[uint32]account // entries that are not zero
}

// account is how much connections may use.
type account struct {
	memory int64
	conns  int
}

// take counts a connection of a user that may use memory bytes. With a *LimitError, nothing
// is counted.
func (a *accounts) take(user uint32, memory int64) error {
	user = quota.Account(user)
	a.mu.Lock()
	defer a.mu.Unlock()
	all, own := a.all, a.users[user]
	all.add(memory, 1)
	own.add(memory, 1)
	if err := all.check(a.max.Memory, a.max.Conns, ""); err != nil {
		return err
	}
	if user != 0 && user != a.exempt {
		whose := fmt.Sprintf(" of user %d", user)
		if err := own.check(a.max.UserMemory, a.max.UserConns, whose); err != nil {
			return err
		}
		before := a.users[user]
		whose += ", who leaves as much for others"
		if !leaves(before.memory, memory, a.max.UserMemory, a.all.memory, a.max.Memory) {
			return &LimitError{What: "bytes of memory for connections" + whose, Max: max(before.memory, (before.memory+a.max.Memory-a.all.memory)/2)}
		}
		if !leaves(before.conns, 1, a.max.UserConns, a.all.conns, a.max.Conns) {
			return &LimitError{What: "connections" + whose, Max: int64(max(before.conns, (before.conns+a.max.Conns-a.all.conns)/2))}
		}
	}
	if a.users == nil {
		a.users = map[uint32]account{}
	}
	a.all, a.users[user] = all, own
	return nil
}

// give ends what take has counted.
func (a *accounts) give(user uint32, memory int64) {
	user = quota.Account(user)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all.add(-memory, -1)
	own := a.users[user]
	if own.add(-memory, -1); own == (account{}) {
		delete(a.users, user)
	} else {
		a.users[user] = own
	}
}

// leaves reports whether a user may take n more of what is limited and leaves enough for others. An
// administrator who gives a user more than half does not want that.
func leaves[N int | int64](own, n, share, used, most N) bool {
	return share <= 0 || most <= 0 || share > most/2 || quota.Fair(own, n, share, used, most)
}

// A maker is who has a link group made: the user of this host whose connection to a peer is the first one, or the hosts of
// an origin of which one has connected to this one. Other users may have connections of the group later.
type maker struct {
	role smc.Role
	user uint32       // of a client: see quota.Account
	from quota.Origin // of a server
}

func makerOf(c *GroupConfig) maker {
	if c.Role == smc.Client {
		return maker{role: c.Role, user: quota.Account(c.Owner)}
	}
	return maker{role: c.Role, from: c.LAN.Origin}
}

func (m maker) String() string {
	if m.role == smc.Client {
		return fmt.Sprintf("user %d", m.user)
	}
	return m.from.String()
}

// mayMake returns a *LimitError if there are too many link groups for one more of a maker. mu is held.
func (d *Driver) mayMake(by maker) error {
	most := d.s.Limits.Groups
	switch {
	case most <= 0:
		return nil
	case d.makers.Total() >= most:
		return &LimitError{What: "link groups", Max: int64(most)}
	case by.role == smc.Client && (by.user == 0 || by.user == d.s.accounts.exempt):
		return nil
	}
	if !d.makers.Fair(by, max(1, most/groupsShare), most) {
		return &LimitError{What: fmt.Sprintf("link groups of %s, who leaves as many for others", by), Max: int64(d.makers.Of(by))}
	}
	return nil
}

// groupsShare: a maker may have 1/groupsShare of all link groups. From the second one on, it also leaves as many for others as it has.
const groupsShare = 2

func (c *account) add(memory int64, conns int) {
	c.memory += memory
	c.conns += conns
}

// check returns an error if an account is above its limits. whose is the end of the error
// text.
func (c *account) check(memory int64, conns int, whose string) error {
	switch {
	case memory > 0 && c.memory > memory:
		return &LimitError{What: "bytes of memory for connections" + whose, Max: memory}
	case conns > 0 && c.conns > conns:
		return &LimitError{What: "connections" + whose, Max: int64(conns)}
	}
	return nil
}
