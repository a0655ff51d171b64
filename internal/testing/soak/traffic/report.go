// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"sync"
	"time"
)

// Line is a line of a client's output.
type Line struct {
	// Tallies has the counts by kind. They only grow, except for Open.
	Tallies map[string]Tally `json:"tallies,omitempty"`
	// Failure is something that did not work.
	Failure *Failure `json:"failure,omitempty"`
	// Done is a command that has been carried out, as it was given.
	Done string `json:"done,omitempty"`
}

// Tally counts what a client has done with one kind of traffic.
type Tally struct {
	Tried int64 `json:"tried"` // connections that were begun
	Conns int64 `json:"conns"` // connections that were made
	Open  int64 `json:"open"`  // connections that are open
	Bytes int64 `json:"bytes"` // bytes that came back and were checked
	Lost  int64 `json:"lost"`  // datagrams without an answer
	// Slowest is the longest time in nanoseconds to make a connection.
	Slowest time.Duration `json:"slowest"`
	// Connects is how long it took to make connections, with their first exchange, and Trips how long each later exchange of those
	// that are held took.
	Connects Times `json:"connects,omitempty"`
	Trips    Times `json:"trips,omitempty"`
}

// Add adds the counts of o to t.
func (t *Tally) Add(o Tally) {
	t.Tried += o.Tried
	t.Conns += o.Conns
	t.Open += o.Open
	t.Bytes += o.Bytes
	t.Lost += o.Lost
	t.Slowest = max(t.Slowest, o.Slowest)
	t.Connects.add(o.Connects)
	t.Trips.add(o.Trips)
}

// Class says what kind of failure it is.
type Class string

// The classes of failures.
const (
	Refused Class = "refused"   // no connection was made, or it ended before its first use
	Ended   Class = "ended"     // a connection ended that should live
	Hung    Class = "hung"      // nothing came back in time
	Corrupt Class = "corrupted" // other bytes came back, or a wrong number of them
)

// Failure is something that did not work.
type Failure struct {
	Kind  string `json:"kind"`
	Class Class  `json:"class"`
	// Began is when the connection attempt or the connection began to be used, At when
	// it failed.
	Began time.Time `json:"began"`
	At    time.Time `json:"at"`
	Error string    `json:"error"`
}

// classOf returns the class of an error of an open connection.
func classOf(err error) Class {
	_, wrong := errors.AsType[*CorruptError](err)
	_, length := errors.AsType[*lengthError](err)
	switch {
	case wrong, length:
		return Corrupt
	case errors.Is(err, os.ErrDeadlineExceeded):
		return Hung
	}
	return Ended
}

// reporter writes lines.
type reporter struct {
	mu  sync.Mutex
	enc *json.Encoder
	err error // the first one
}

func newReporter(w io.Writer) *reporter { return &reporter{enc: json.NewEncoder(w)} }

func (r *reporter) write(l *Line) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.enc.Encode(l); err != nil && r.err == nil {
		r.err = err
	}
}

func (r *reporter) broken() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}
