// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"errors"
)

// ErrReset means that the peer, its host or the last link has gone (ECONNRESET).
var ErrReset = errors.New("conn: connection reset by peer")

// ErrAborted means that this side ended the connection without waiting for the peer
// (ECONNABORTED).
var ErrAborted = errors.New("conn: connection aborted")

// ErrPeerClosed means that the peer has closed the connection and takes no more
// data (EPIPE).
var ErrPeerClosed = errors.New("conn: peer closed the connection")

// ErrWriteClosed means that this side ended its direction of the stream (EPIPE).
var ErrWriteClosed = errors.New("conn: connection is closed for writing")

// ErrClosed means that this side has closed the connection.
var ErrClosed = errors.New("conn: connection is closed")

// ErrCloseTimeout means that the peer did not close its side in time.
var ErrCloseTimeout = errors.New("conn: peer did not close the connection in time")

// ErrUrgentTimeout means that the peer did not confirm an urgent byte in time, so
// that the data behind it could not be sent.
var ErrUrgentTimeout = errors.New("conn: peer did not confirm urgent data in time")

// ErrNoUrgent means that there is no urgent byte to take (EINVAL).
var ErrNoUrgent = errors.New("conn: no urgent data")

// ErrUrgentPending means that an urgent byte is announced and has not arrived yet
// (EAGAIN).
var ErrUrgentPending = errors.New("conn: urgent data has not arrived yet")

// ErrUrgentMark means that the readable data ends before an urgent byte.
var ErrUrgentMark = errors.New("conn: an urgent byte comes next")

// ErrProtocol means that a CDC message of the peer violates the protocol.
var ErrProtocol = errors.New("conn: protocol violation")

// ErrInvariant means that the state of a connection contradicts itself: a fault of
// this package or of its caller, never of the peer. [Protocol.Check] and
// [Protocol.CheckWrite] return it.
var ErrInvariant = errors.New("conn: invariant broken")
