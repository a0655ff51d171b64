// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"log/slog"
	"time"
)

// Config is what the connections of one link group have in common. The group may
// change it as long as no connection is open.
type Config struct {
	Timers Timers
	Peer   Peer
	// Autocork is how many bytes a connection holds back at most while one of
	// its messages is outstanding, and at most half of its send buffer. Zero or
	// less means none.
	Autocork int
	// Log takes events of interest to an operator. It must not be nil.
	Log *slog.Logger
}

// Peer says in what the peer differs from RFC 7609, as far as connections are
// concerned.
type Peer struct {
	// StopsAtUrgent: the consumer cursor of the peer may stay before an urgent
	// byte for good. See placement.
	StopsAtUrgent bool
	// LosesCursor: the peer does not repeat its consumer cursor when a link is lost. See
	// lostCursor.
	LosesCursor bool
}

// Timers are the times after which a connection stops waiting.
type Timers struct {
	// CloseWait is how long a closed connection waits for the peer to close it
	// too. The connection is aborted then.
	CloseWait time.Duration
	// AbortWait is how long an aborted connection waits for the abort of the
	// peer.
	AbortWait time.Duration
	// UrgentWait is how long data may wait for the peer to confirm an urgent
	// byte before it, when the peer has read everything else. The connection is
	// aborted then. Zero means no limit.
	UrgentWait time.Duration
	// TCPGrace is how long after the end of the TCP connection the peer may
	// still close the SMC-R connection in order.
	TCPGrace time.Duration
	// TCPGraceAlive is the same for a peer that sends messages on the link and
	// has ended the TCP connection by FIN.
	TCPGraceAlive time.Duration
}

// DefaultAutocork is the Autocork of Linux (net.smc.autocorking_size), in bytes.
const DefaultAutocork = 64 << 10

// timer is a time at which a connection has something to do. The zero timer is
// stopped.
type timer struct{ at time.Time }

func (t *timer) stop()                  { t.at = time.Time{} }
func (t *timer) running() bool          { return !t.at.IsZero() }
func (t *timer) due(now time.Time) bool { return t.running() && !now.Before(t.at) }
