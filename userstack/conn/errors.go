// SPDX-License-Identifier: Apache-2.0

package conn

import "errors"

// ErrReset means that the peer, its host or the last link has gone (ECONNRESET).
var ErrReset = errors.New("linkgroup: connection reset by peer")

// ErrAborted means that this side ended the connection without waiting for the peer
// (ECONNABORTED).
var ErrAborted = errors.New("linkgroup: connection aborted")

// ErrPeerClosed means that the peer has closed the connection and takes no more
// data (EPIPE).
var ErrPeerClosed = errors.New("linkgroup: peer closed the connection")

// ErrWriteClosed means that this side ended its direction of the stream (EPIPE).
var ErrWriteClosed = errors.New("linkgroup: connection is closed for writing")

// ErrClosed means that this side has closed the connection.
var ErrClosed = errors.New("linkgroup: connection is closed")

// ErrCloseTimeout means that the peer did not close its side in time.
var ErrCloseTimeout = errors.New("linkgroup: peer did not close the connection in time")

// ErrUrgentTimeout means that the peer did not confirm an urgent byte in time, so
// that the data behind it could not be sent.
var ErrUrgentTimeout = errors.New("linkgroup: peer did not confirm urgent data in time")

// ErrNoUrgent means that there is no urgent byte to take (EINVAL).
var ErrNoUrgent = errors.New("linkgroup: no urgent data")

// ErrUrgentPending means that an urgent byte is announced and has not arrived yet
// (EAGAIN).
var ErrUrgentPending = errors.New("linkgroup: urgent data has not arrived yet")

// ErrUrgentMark means that the readable data ends before an urgent byte.
var ErrUrgentMark = errors.New("linkgroup: an urgent byte comes next")

// ErrProtocol means that a CDC message of the peer violates the protocol.
var ErrProtocol = errors.New("linkgroup: protocol violation")

// ErrInvariant means that the state of a connection contradicts itself: a fault of
// this package or of its caller, never of the peer. [Conn.Check], [Conn.CheckWrite]
// and [CheckPair] return it.
var ErrInvariant = errors.New("linkgroup: invariant broken")
