// SPDX-License-Identifier: Apache-2.0

package linkgroup

import "errors"

// Errors of connections.
var (
	// ErrReset means that the peer, its host or the last link is gone
	// (ECONNRESET).
	ErrReset = errors.New("linkgroup: connection reset by peer")
	// ErrAborted means that this side ended the connection without
	// waiting for the peer (ECONNABORTED).
	ErrAborted = errors.New("linkgroup: connection aborted")
	// ErrPeerClosed means that the peer has closed the connection and takes
	// no more data (EPIPE).
	ErrPeerClosed = errors.New("linkgroup: peer closed the connection")
	// ErrWriteClosed means that this side said that it sends no more
	// (EPIPE).
	ErrWriteClosed = errors.New("linkgroup: connection is closed for writing")
	// ErrClosed means that this side has closed the connection.
	ErrClosed = errors.New("linkgroup: connection is closed")
	// ErrCloseTimeout means that the peer did not close its side in time.
	ErrCloseTimeout = errors.New("linkgroup: peer did not close the connection in time")
	// ErrUrgentTimeout means that the peer did not confirm an urgent byte
	// in time, so that what follows it could not be sent.
	ErrUrgentTimeout = errors.New("linkgroup: peer did not confirm urgent data in time")
	// ErrNoUrgent means that there is no urgent byte to take (EINVAL).
	ErrNoUrgent = errors.New("linkgroup: no urgent data")
	// ErrUrgentPending means that an urgent byte is announced and still to
	// come (EAGAIN).
	ErrUrgentPending = errors.New("linkgroup: urgent data has not arrived yet")
	// ErrUrgentMark means that what can be read ends before an urgent byte.
	ErrUrgentMark = errors.New("linkgroup: an urgent byte comes next")
	// ErrUnknownRKey means that the peer named an RMB which it did not make
	// known on all links; decline SMC-R.
	ErrUnknownRKey = errors.New("linkgroup: unknown RKey of the peer")
	// ErrNoFallback means that a first contact failed when it was too late for
	// DECLINE: the TCP connection is to be reset (RFC 7609, appendices C.3 and
	// C.7).
	ErrNoFallback = errors.New("linkgroup: too late to fall back to TCP")
	// ErrNotItsOwn means that a host named an element or an alert token of a
	// connection that another host has told of.
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
	// ErrSequence means that a call came at the wrong time.
	ErrSequence = errors.New("linkgroup: call out of sequence")
	// ErrTimeout means that the peer did not answer an LLC request in time.
	ErrTimeout = errors.New("linkgroup: the peer did not answer in time")
	// ErrRejected means that the peer answered no.
	ErrRejected = errors.New("linkgroup: the peer rejected the request")
	// ErrProtocol means that the peer violated the protocol.
	ErrProtocol = errors.New("linkgroup: protocol violation")
	// ErrTerminated means that the group was ended by DELETE LINK for all
	// links, from either side.
	ErrTerminated = errors.New("linkgroup: link group terminated")
	// ErrIdle means that the group had no connection for too long.
	ErrIdle = errors.New("linkgroup: link group was idle")
)
