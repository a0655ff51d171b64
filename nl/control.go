// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"context"

	"smcr/pnet"
	"smcr/stats"
)

// Control reads and changes the state of one SMC stack in one network
// namespace. Every method is safe for concurrent use, returns when ctx ends, and
// fails with an error that matches the sentinels described at [OpError].
type Control interface {
	// SysInfo returns what the stack is and can do.
	SysInfo(ctx context.Context) (SysInfo, error)

	// LinkGroups returns the SMC-R link groups.
	LinkGroups(ctx context.Context) ([]LinkGroup, error)

	// Links returns the links of all SMC-R link groups, those of one group
	// side by side.
	Links(ctx context.Context) ([]Link, error)

	// Devices returns the RoCE devices the stack can use.
	Devices(ctx context.Context) ([]Device, error)

	// Stats returns all counters.
	Stats(ctx context.Context) (Stats, error)

	// Fallbacks returns how many connections became plain TCP, and why.
	Fallbacks(ctx context.Context) (Fallbacks, error)

	// UEIDs returns the user-defined enterprise IDs, without padding.
	UEIDs(ctx context.Context) ([]string, error)

	// AddUEID defines an enterprise ID. It matches os.ErrExist for one
	// defined already, os.ErrInvalid for a malformed one (see [CheckEID])
	// and syscall.ERANGE when MaxUEIDs are defined.
	AddUEID(ctx context.Context, eid string) error

	// RemoveUEID removes an enterprise ID, or matches os.ErrNotExist.
	RemoveUEID(ctx context.Context, eid string) error

	// FlushUEID removes all user-defined enterprise IDs.
	FlushUEID(ctx context.Context) error

	// SEID returns the system enterprise ID. Its Value is empty where there
	// is none, which is the rule except on s390.
	SEID(ctx context.Context) (SEID, error)

	// SetSEID says whether the system enterprise ID is proposed to peers. It
	// matches ErrNotSupported where there is none.
	SetSEID(ctx context.Context, enabled bool) error

	// HSLimitation reports whether a listener under pressure answers new
	// handshakes with plain TCP.
	HSLimitation(ctx context.Context) (bool, error)

	// SetHSLimitation changes what HSLimitation reports.
	SetHSLimitation(ctx context.Context, enabled bool) error

	// PNETs returns the pnetid table: entries with a network device or with a
	// RoCE port, never both.
	PNETs(ctx context.Context) ([]PNET, error)

	// AddPNET gives a pnetid to a network device, a RoCE port, or both. It
	// matches os.ErrExist when these have one, os.ErrInvalid for a malformed
	// entry, and may match os.ErrNotExist (ENODEV) for an unknown device.
	AddPNET(ctx context.Context, p PNET) error

	// RemovePNET removes all entries of a pnetid, or matches os.ErrNotExist.
	RemovePNET(ctx context.Context, id string) error

	// FlushPNET empties the pnetid table.
	FlushPNET(ctx context.Context) error

	// Connections returns the SMC sockets, listening ones and those that
	// became plain TCP included.
	Connections(ctx context.Context) ([]Connection, error)

	// Close releases the connection to the stack. It does not stop the stack.
	Close() error
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

// Fallbacks says how many connections became plain TCP, and why.
type Fallbacks = stats.Fallbacks

// Fallback is the count of one reason on one side.
type Fallback = stats.Fallback

// PNET is an entry of the pnetid table.
type PNET = pnet.Entry
