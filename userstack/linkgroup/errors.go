// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"errors"
)

// Errors of connections.
var (
	// ErrUnknownRKey means that the peer named an RMB which it did not make
	// known on all links; decline SMC-R.
	ErrUnknownRKey = errors.New("linkgroup: unknown RKey of the peer")
	// ErrNoFallback means that a first contact failed when it was too late for
	// DECLINE: the TCP connection is to be reset (RFC 7609, appendices C.3 and
	// C.7).
	ErrNoFallback = errors.New("linkgroup: too late to fall back to TCP")
	// ErrNotItsOwn means that a host named an element or an alert token of a
	// connection that another host has named before.
	ErrNotItsOwn = errors.New("linkgroup: the RMB element is another connection's")
	// ErrInvalidParams means that CLC values are out of range; decline.
	ErrInvalidParams = errors.New("linkgroup: invalid connection parameters")
)

// Errors of groups.
var (
	// ErrGroupDead means that the group has ended.
	ErrGroupDead = errors.New("linkgroup: link group has ended")
	// ErrFull means that the group takes no more connections now; use or
	// create another group.
	ErrFull = errors.New("linkgroup: link group is full")
	// ErrNoLink means that no link is active.
	ErrNoLink = errors.New("linkgroup: no active link")
	// ErrNoDevice means that no device is up.
	ErrNoDevice = errors.New("linkgroup: no device is up")
	// ErrNoAlternate means that the peer offers a second link, and no device of this host can be
	// its end.
	ErrNoAlternate = errors.New("linkgroup: no other device of this host is up that reaches that of the peer: one in the same subnet, or with the same pnetid (see 'smcr pnet add')")
	// ErrSequence means that a call came at the wrong time.
	ErrSequence = errors.New("linkgroup: call out of sequence")
	// ErrTimeout means that the peer did not answer an LLC request in time.
	ErrTimeout = errors.New("linkgroup: the peer did not answer in time")
	// ErrSilent means that nothing came from the peer over RDMA in a first contact; decline.
	ErrSilent = errors.New("linkgroup: the peer did not answer over RDMA in time")
	// ErrNoSign means that the link for a new connection has shown no sign of the peer for a
	// while: the path or the peer's end of the link may be gone; decline.
	ErrNoSign = errors.New("linkgroup: the link shows no sign of the peer")
	// ErrPathDied means that the group has ended because nothing passes over RDMA any more,
	// although the TCP connections below its connections have not ended.
	ErrPathDied = errors.New("linkgroup: the peer does not answer over RDMA any more")
	// ErrRejected means that the peer rejected a request.
	ErrRejected = errors.New("linkgroup: the peer rejected the request")
	// ErrProtocol means that the peer violated the protocol.
	ErrProtocol = errors.New("linkgroup: protocol violation")
	// ErrTerminated means that the group was ended by DELETE LINK for all
	// links, from either side.
	ErrTerminated = errors.New("linkgroup: link group terminated")
	// ErrIdle means that the group had no connection for too long.
	ErrIdle = errors.New("linkgroup: link group was idle")
)
