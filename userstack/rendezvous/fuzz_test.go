// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/userstack/wire"
)

// driven is a machine under arbitrary events, and what it has asked for.
type driven struct {
	*script
	ledger
}

// check fails the test if the machine has done something wrong with an event.
func (d *driven) check(t testing.TB) {
	t.Helper()
	if err := d.saw(d.m, d.m.TakeActions(nil)); err != nil {
		t.Fatal(err)
	}
}

// ledger has what a machine has asked for, as far as it matters for what it may ask for
// next.
type ledger struct {
	made     string // what the machine would have to give back
	declined int    // DECLINE messages that were sent
}

// saw takes the actions of the machine after an event. It returns an error if the machine
// must not have asked for them, or must not be in the state in which it is.
func (l *ledger) saw(m *Machine, actions []Action) error {
	for _, a := range actions {
		switch a := a.(type) {
		case MakeGroup:
			l.made = "group"
		case JoinGroup:
			l.made = "conn" // if it is answered so
		case CancelConn, AbortConn:
			if l.made != "conn" {
				return fmt.Errorf("%T of %q", a, l.made)
			}
			l.made = ""
		case EndGroup:
			if l.made != "group" {
				return fmt.Errorf("%T of %q", a, l.made)
			}
			l.made = ""
		case Send:
			if _, err := a.Message.AppendBinary(nil); err != nil {
				return fmt.Errorf("%s cannot be sent: %w", a.Message.CLCType(), err)
			}
			if l.declined > 0 {
				return errors.New("a message after DECLINE")
			}
			if a.Message.CLCType() == wire.TypeDecline {
				l.declined++
			}
		}
	}
	o := m.Outcome()
	switch {
	case m.State() != Over:
		if o != (Outcome{}) {
			return fmt.Errorf("an outcome in state %s: %+v", m.State(), o)
		}
		if m.State().reads() != (m.Want() > 0) && !m.ended {
			return fmt.Errorf("wants %d bytes in state %s", m.Want(), m.State())
		}
	case o.Refused != nil && o.Err != nil:
		return fmt.Errorf("two outcomes: %v and %w", o.Refused, o.Err)
	case o.Refused == nil && o.Err == nil:
		if l.made == "" || l.declined > 0 {
			return errors.New("SMC-R without a connection, or after DECLINE")
		}
	case !m.Deadline().IsZero():
		return errors.New("a deadline after the end")
	}
	if len(m.part) > 2048 {
		return fmt.Errorf("holds %d bytes of a message", len(m.part))
	}
	return nil
}

// names are those of testEvents in order, and of times that pass.
var names = func() []string {
	list := slices.Sorted(maps.Keys(testEvents))
	return append(list, "+1ms", "+50ms", "+500ms", "+2s", "+6s", "+30s")
}()

// fitting returns the events for which the table has an entry.
func (d *driven) fitting() []string {
	var list []string
	for _, n := range names {
		on := EvDeadline
		switch ev := testEvents[n].(type) {
		case wire.CLC:
			on = message{ev}.kind()
		case Event:
			on = ev.kind()
		}
		if d.m.table.rows[d.m.State()][on] != nil {
			list = append(list, n)
		}
	}
	return list
}

// TestAnyOrder hands in events in any order, most of them such that the table has an entry
// for: nothing panics, what was made is given back once, nothing follows a DECLINE, and
// each rendezvous ends.
func TestAnyOrder(t *testing.T) {
	ends := map[string]int{}
	seeds := uint64(20_000)
	if testing.Short() {
		seeds = 5000
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		who := []string{"client", "server", "looking", "looking, option"}[r.IntN(4)]
		d := newDriven(t, who)
		for range 200 {
			if d.m.State() == Over {
				break
			}
			list := d.fitting()
			switch r.IntN(40) {
			case 0:
				list = names
			case 1, 2, 3:
			default: // what leads on
				list = slices.DeleteFunc(list, func(n string) bool {
					return strings.Contains(n, "ailed") || strings.HasPrefix(n, "DECLINE") || n == "EOF"
				})
			}
			if len(list) == 0 {
				continue
			}
			d.happens(t, list[r.IntN(len(list))])
			d.check(t)
		}
		for range 100 {
			d.happens(t, "+30s")
			d.check(t)
		}
		if d.m.State() != Over {
			d.happens(t, "Closed")
			d.check(t)
		}
		if d.m.State() != Over {
			t.Fatalf("seed %d: %s is still in state %s", seed, who, d.m.State())
		}
		o := d.m.Outcome()
		switch {
		case o.Refused != nil:
			ends["TCP"]++
		case o.Err != nil:
			ends["reset"]++
		default:
			ends["SMC-R"]++
		}
	}
	t.Log(ends)
	if len(ends) < 3 {
		t.Errorf("ends %v: the events do not reach every kind", ends)
	}
}

func newDriven(t testing.TB, who string) *driven {
	d := &driven{}
	d.script = newScript(t, who, func(tb *table, from State, on EventKind, to State) {
		if err := allowed(tb, from, on, to); err != nil {
			t.Fatal(err)
		}
	})
	d.check(t)
	return d
}

// FuzzMachine takes a machine through events and bytes of the fuzzer's choice: the machine
// must end as it should (see driven.check), whatever its peer and its driver do.
func FuzzMachine(f *testing.F) {
	for who := range byte(5) {
		f.Add(append([]byte{who}, 0, 10, 20, 30, 40, 50, 60, 70))
		f.Add([]byte{who, 255, 8, 0xe2, 0xd4, 0xc3, 0xd9, 4, 0, 28, 0x10})
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) == 0 {
			return
		}
		d := newDriven(t, []string{"client", "server", "looking", "looking, option"}[int(in[0])%4])
		for in = in[1:]; len(in) > 0; {
			b := in[0]
			in = in[1:]
			switch {
			case b == 255 && len(in) > 0: // bytes of the peer
				n := min(int(in[0]), len(in)-1)
				d.feed(in[1 : 1+n])
				in = in[1+n:]
			case b >= 200: // what fits
				if list := d.fitting(); len(list) > 0 {
					d.happens(t, list[int(b-200)*len(list)/55%len(list)])
				}
			case int(b) < len(names):
				d.happens(t, names[b])
			default:
				d.now = d.now.Add(time.Duration(b) * time.Millisecond)
				d.m.Handle(d.now, Tick{})
			}
			d.check(t)
		}
		d.happens(t, "Closed")
		d.check(t)
		if d.m.State() != Over {
			t.Fatalf("still in state %s", d.m.State())
		}
	})
}
