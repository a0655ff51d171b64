// SPDX-License-Identifier: Apache-2.0

package joined

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

var (
	verbs = map[Verb]string{
		ShutEnd: "ShutEnd", CutEnd: "CutEnd", DropEnd: "DropEnd", ResetEnd: "ResetEnd", AwaitLate: "AwaitLate", Tell: "Tell",
		ShutTCP: "ShutTCP", CloseTCP: "CloseTCP", ResetTCP: "ResetTCP", PokeTCP: "PokeTCP",
	}
	kinds = map[Kind]string{Placed: "placed", Shut: "shut", Closed: "closed", Aborted: "aborted", Late: "late", Killed: "killed"}
)

// text returns actions as in the table, with C and S for the sides.
func text(as []Action) string {
	var b []string
	for _, a := range as {
		b = append(b, verbs[a.Verb]+" "+strings.ToUpper(a.Side.String()[:1]))
	}
	return strings.Join(b, ", ")
}

func parse(t *testing.T, s string) (evs []Event) {
	t.Helper()
	for word := range strings.FieldsSeq(s) {
		ev := Event{Kind: Kind(len(kinds))}
		for k, name := range kinds {
			if strings.HasPrefix(word, name) {
				ev.Kind = k
				ev.Side = Client
				if strings.HasSuffix(word, "S") {
					ev.Side = Server
				}
			}
		}
		if ev.Kind == Kind(len(kinds)) {
			t.Fatalf("event %q", word)
		}
		evs = append(evs, ev)
	}
	return evs
}

// TestHandle has a row for each row of the table of Handle: the events before, the event,
// and the actions.
func TestHandle(t *testing.T) {
	for _, tt := range []struct{ before, event, want string }{
		{"", "placedS", ""},
		{"shutC", "placedS", "ShutTCP C"},
		{"closedC", "placedS", "CloseTCP C"},
		{"shutC abortedC", "placedS", "ShutTCP C, ResetTCP C"},
		{"placedS", "placedS", ""},

		{"placedS", "shutC", "ShutTCP C"},
		{"placedS closedS", "shutC", "ShutTCP C, DropEnd S"},
		{"placedS shutS", "shutC", "ShutTCP C"},
		{"", "shutC", ""},
		{"placedS shutC", "shutC", ""},
		{"placedS closedC", "shutC", ""},

		{"", "closedC", "ShutEnd C, AwaitLate C"},
		{"placedS", "closedC", "ShutEnd C, CloseTCP C, AwaitLate C"},
		{"placedS", "closedS", "ShutEnd S, CloseTCP S, AwaitLate S"},
		{"placedS shutC", "closedC", "CloseTCP C, AwaitLate C"},
		{"placedS shutS", "closedC", "DropEnd C, CloseTCP C"},
		{"placedS shutS shutC", "closedC", "DropEnd C, CloseTCP C"},
		{"placedS closedC", "closedS", "DropEnd C, DropEnd S, CloseTCP S"},
		{"placedS closedC lateC", "closedS", "DropEnd S, CloseTCP S"},
		{"placedS closedC", "closedC", ""},

		{"", "abortedC", "ResetEnd C"},
		{"placedS", "abortedC", "ResetEnd C, ResetTCP C"},
		{"placedS shutS", "abortedC", "ResetEnd C, ResetTCP C"},
		{"placedS shutC", "abortedC", "CutEnd S, DropEnd C, ResetTCP C"},
		{"placedS shutC shutS", "abortedC", "DropEnd C, CloseTCP C"},
		{"placedS closedC", "abortedS", "DropEnd C, DropEnd S, ResetTCP S"},
		{"placedS abortedC", "abortedS", "DropEnd S, ResetTCP S"},
		{"placedS abortedC", "closedS", "DropEnd S, CloseTCP S"},

		{"placedS closedC", "lateC", "CutEnd S, DropEnd C, PokeTCP S"},
		{"placedS closedC lateC", "lateC", ""},
		{"placedS", "lateC", ""},

		{"", "killed", "ResetEnd S, Tell C"},
		{"shutC", "killed", "ShutTCP C, ResetEnd S, Tell C"},
		{"placedS", "killed", "CutEnd C, Tell C, Tell S"},
		{"placedS shutS", "killed", "CutEnd C, Tell C, Tell S"},
		{"placedS closedC", "killed", "CutEnd S, DropEnd C, Tell S"},
		{"placedS closedS", "killed", "CutEnd C, DropEnd S, Tell C"},
		{"placedS abortedS", "killed", ""},
		{"closedC", "killed", "CloseTCP C, DropEnd C, DropEnd S"},
		{"abortedC", "killed", "ResetTCP C, DropEnd S"},
		{"placedS killed", "killed", ""},
		{"placedS killed", "closedC", "DropEnd C, CloseTCP C"},
		{"placedS killed closedC", "abortedS", "DropEnd S, ResetTCP S"},
		{"killed", "closedC", "DropEnd C, CloseTCP C"},
	} {
		p := New()
		for _, ev := range parse(t, tt.before) {
			p.Handle(ev)
		}
		if got := text(p.Handle(parse(t, tt.event)[0])); got != tt.want {
			t.Errorf("after %q, %s: %q, want %q", tt.before, tt.event, got, tt.want)
		}
	}
}

// TestAllSequences tries all sequences of events of a connection: whatever comes, in any
// order, the stack closes each descriptor once, uses none afterwards, and has none when both
// programs have closed.
func TestAllSequences(t *testing.T) {
	most := 7
	if testing.Short() {
		most = 5
	}
	var all []Event
	for k := range kinds {
		for _, s := range []Side{Client, Server} {
			all = append(all, Event{k, s})
		}
	}
	var walk func(past []Event)
	walk = func(past []Event) {
		p := New()
		var ends, tcp [2]bool // closed
		counts := [2]bool{}   // the program has closed
		placed, killed := false, false
		for _, ev := range past {
			placed = placed || ev.Kind == Placed && ev.Side == Server
			killed = killed || ev.Kind == Killed
			if (ev.Kind == Closed || ev.Kind == Aborted) && (ev.Side == Client || placed) {
				counts[ev.Side] = true
			}
			for _, a := range p.Handle(ev) {
				fail := func(why string) {
					t.Fatalf("%s: after %v, %s", why, past, text([]Action{a}))
				}
				switch {
				case a.Verb.tcp() && tcp[a.Side], !a.Verb.tcp() && a.Verb != Tell && ends[a.Side]:
					fail("it is closed")
				case a.Verb == CloseTCP || a.Verb == ResetTCP:
					tcp[a.Side] = true
				case a.Verb == DropEnd || a.Verb == ResetEnd:
					ends[a.Side] = true
				case a.Verb == Tell && counts[a.Side]:
					fail("nobody is there")
				}
			}
		}
		over := counts[Client] && (counts[Server] || killed && !placed)
		if over && (ends != [2]bool{true, true} || !tcp[Client] || placed && !tcp[Server]) || p.Done() != over {
			t.Fatalf("after %v: ends closed %v, TCP closed %v, done %v, want %v", past, ends, tcp, p.Done(), over)
		}
		if len(past) == most || over {
			return
		}
		for _, ev := range all {
			// Events that change nothing do not have to be tried again.
			if n := len(past); n > 0 && past[n-1] == ev {
				continue
			}
			if ev.Kind != Late && slices.Contains(past, ev) {
				continue
			}
			walk(append(past[:len(past):len(past)], ev))
		}
	}
	walk(nil)
}

func (e Event) String() string { return fmt.Sprintf("%s %v", kinds[e.Kind], e.Side) }
