// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"

	"smcr/internal/testing/soak/traffic"
)

// Row is what was seen of one fault under some traffic.
type Row struct {
	Fault       string `json:"fault"`
	Traffic     string `json:"traffic"`
	Times       int64  `json:"times"` // how often the fault was made
	Connections int64  `json:"connections"`
	Bytes       int64  `json:"bytes"`
	Corrupted   int64  `json:"corrupted"`
	Hung        int64  `json:"hung"`
	// Lost counts connections that ended, or were not made, although the fault must
	// not do that.
	Lost int64 `json:"lost"`
	// Leaked counts what remained: the things are in Notes.
	Leaked int64    `json:"leaked"`
	Notes  []string `json:"notes,omitempty"`
	// Figures is what a flood has cost others.
	Figures *figures `json:"-"`

	mu sync.Mutex
}

// count counts a failure, and returns how many of its class there are.
func (r *Row) count(c traffic.Class) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := &r.Lost
	switch c {
	case traffic.Corrupt:
		n = &r.Corrupted
	case traffic.Hung:
		n = &r.Hung
	}
	*n++
	return *n
}

// leak counts something that remained.
func (r *Row) leak(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Leaked++
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// note adds a line to what is printed with the row.
func (r *Row) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// ok reports whether nothing was found.
func (r *Row) ok() bool { return r.Corrupted+r.Hung+r.Lost+r.Leaked == 0 }

// summary prints rows, and reports whether nothing was found in any.
func summary(rows ...*Row) bool {
	ok := true
	enc := json.NewEncoder(os.Stdout)
	say("%-34s %-30s %6s %11s %10s %9s %5s %5s %6s", "fault", "traffic", "times", "connections", "MiB", "corrupted", "hung", "lost", "leaked")
	for _, r := range rows {
		ok = ok && r.ok()
		say("%-34s %-30s %6d %11d %10d %9d %5d %5d %6d", r.Fault, r.Traffic, r.Times, r.Connections, r.Bytes>>20, r.Corrupted, r.Hung, r.Lost, r.Leaked)
		for _, note := range r.Notes {
			say("  %s", note)
		}
		_ = enc.Encode(r)
	}
	return ok
}
