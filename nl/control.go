// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"context"

	"smcr/pnet"
	"smcr/stats"
)

// Control reads and changes the state of one SMC stack in one network namespace. All
// methods are safe for concurrent use and return when ctx ends. Their errors match the
// sentinels that [OpError] lists.
type Control interface {
	// SysInfo returns what the stack is and can do.
	SysInfo(ctx context.Context) (SysInfo, error)

	// LinkGroups returns the SMC-R link groups.
	LinkGroups(ctx context.Context) ([]LinkGroup, error)

	// Links returns the links of all SMC-R link groups. The links of one group follow
	// each other.
	Links(ctx context.Context) ([]Link, error)

	// DeleteLink deletes a link of a link group in order: its connections move to
	// another link first (RFC 7609, section 3.5.5.1.3). link is its number in the group.
	// It returns when the deletion has begun. The last byte of the group's ID does not
	// matter. The error matches os.ErrNotExist if there is no such link, syscall.EBUSY if
	// it is not active or if no other link is, and ErrNotSupported for the kernel.
	DeleteLink(ctx context.Context, group LinkGroupID, link uint8) error

	// DeleteLinkGroup ends a link group in order: the peer is told, and all connections
	// are reset (RFC 7609, section 3.5.4). It returns when the end has begun. The last byte
	// of the ID does not matter. The error matches os.ErrNotExist if there is no such link
	// group, and ErrNotSupported for the kernel.
	DeleteLinkGroup(ctx context.Context, group LinkGroupID) error

	// Trace begins, continues or ends a trace of the messages and packets that the stack
	// sends and receives from then on. A request that continues a trace waits for events, but
	// for at most a second. A trace ends if none comes for some seconds. The error matches
	// syscall.EUSERS if there are too many traces, os.ErrNotExist if the trace has ended, and
	// ErrNotSupported for the kernel.
	Trace(ctx context.Context, r TraceRequest) (Trace, error)

	// Devices returns the RoCE devices the stack can use.
	Devices(ctx context.Context) ([]Device, error)

	// Stats returns all counters.
	Stats(ctx context.Context) (Stats, error)

	// Fallbacks returns how many connections became plain TCP, and why.
	Fallbacks(ctx context.Context) (Fallbacks, error)

	// UEIDs returns the user-defined enterprise IDs, without padding.
	UEIDs(ctx context.Context) ([]string, error)

	// AddUEID adds a user-defined enterprise ID. The error matches os.ErrExist if the
	// stack has it already, os.ErrInvalid if it is not valid (see [CheckEID]), and
	// syscall.ERANGE if the stack has MaxUEIDs already.
	AddUEID(ctx context.Context, eid string) error

	// RemoveUEID removes a user-defined enterprise ID. The error matches
	// os.ErrNotExist if the stack does not have it.
	RemoveUEID(ctx context.Context, eid string) error

	// FlushUEID removes all user-defined enterprise IDs.
	FlushUEID(ctx context.Context) error

	// SEID returns the system enterprise ID. Its Value is empty if there is none; only
	// s390 machines have one.
	SEID(ctx context.Context) (SEID, error)

	// SetSEID sets whether the system enterprise ID is proposed to peers. The error
	// matches ErrNotSupported if there is none.
	SetSEID(ctx context.Context, enabled bool) error

	// HSLimitation reports whether a listener with too many handshakes makes new
	// connections plain TCP.
	HSLimitation(ctx context.Context) (bool, error)

	// SetHSLimitation sets what HSLimitation reports.
	SetHSLimitation(ctx context.Context, enabled bool) error

	// PNETs returns the pnetid table. Each entry has either a network device or a RoCE
	// port.
	PNETs(ctx context.Context) ([]PNET, error)

	// AddPNET assigns a pnetid to a network device, a RoCE port, or both. The error
	// matches os.ErrExist if these have one, and os.ErrInvalid if the entry is not
	// valid. It may match os.ErrNotExist (ENODEV) if a device does not exist.
	AddPNET(ctx context.Context, p PNET) error

	// RemovePNET removes all entries of a pnetid. The error matches os.ErrNotExist if
	// there are none.
	RemovePNET(ctx context.Context, id string) error

	// FlushPNET removes all entries of the pnetid table.
	FlushPNET(ctx context.Context) error

	// Connections returns the SMC sockets, with those that listen and those that
	// became plain TCP.
	Connections(ctx context.Context) ([]Connection, error)

	// Close releases the connection to the stack. It does not stop the stack.
	Close() error
}

// EachConnection calls each with each connection of a stack, as [Client.EachConnection] does.
// A Control without such a method is asked for the whole table.
func EachConnection(ctx context.Context, c Control, begin func(), each func(*Connection)) error {
	if w, ok := c.(interface {
		EachConnection(ctx context.Context, begin func(), each func(*Connection)) error
	}); ok {
		return w.EachConnection(ctx, begin, each)
	}
	all, err := c.Connections(ctx)
	if err != nil {
		return err
	}
	begin()
	for i := range all {
		each(&all[i])
	}
	return nil
}

// ControlSMCD is implemented by a [Control] that also knows SMC-D.
type ControlSMCD interface {
	// LinkGroupsD returns the SMC-D link groups.
	LinkGroupsD(ctx context.Context) ([]LinkGroupD, error)

	// DevicesD returns the ISM devices.
	DevicesD(ctx context.Context) ([]Device, error)
}

// Stats is the set of all counters of a stack.
type Stats = stats.Stats

// Fallbacks is how many connections became plain TCP, and why.
type Fallbacks = stats.Fallbacks

// Fallback is the number of connections that became plain TCP for one reason, on one side.
type Fallback = stats.Fallback

// PNET is an entry of the pnetid table.
type PNET = pnet.Entry
