// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"maps"
	"slices"
	"testing"
)

// TestNoOffer: these are all messages of the protocol, and each is between a launcher and its own
// stack. Two stacks agree on nothing: a message by which one offers the other a connection of a
// program, or says what a socket of its own will do, must not come back. What another stack says
// would open a gate then, and each end could come to another result.
func TestNoOffer(t *testing.T) {
	want := []string{
		// From the launcher.
		"accept", "attach", "broken-done", "cancel", "connect", "detour", "get-option", "hello", "listen", "note", "proceed", "release",
		"set-option", "urgent-dropped",
		// From its stack.
		"broken", "closed", "drop-urgent", "established", "failed", "handed-over", "local", "not-candidate", "ready", "result", "taken", "welcome",
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Values(typeNames)); !slices.Equal(got, want) {
		t.Errorf("the messages are\n%q, want\n%q", got, want)
	}
}
