// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"errors"
	"fmt"
	"io"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// How long the machine waits.
const (
	// MessageWait bounds the wait for a CLC message, as with Linux (RFC 7609, appendix
	// C.5).
	MessageWait = 6 * time.Second
	// LateGrace is how much longer the machine waits for a message that may have come in
	// time: this process may have stood still, and its timer fired first.
	LateGrace = 50 * time.Millisecond
	// HeaderWait is how long the rest of a CLC header may be on its way, where the
	// machine looks before it reads.
	HeaderWait = 100 * time.Millisecond
	// TurnWait bounds a server's wait for the end of another first contact with the same
	// client. The client waits MessageWait for an answer: DECLINE has to come before.
	TurnWait = MessageWait / 2
	// LLCWait bounds the wait for the outcome of CONFIRM RKEY. The link group's own
	// timers end it long before.
	LLCWait = 30 * time.Second
	// LetGoWait bounds the wait for the program of a client to have its connection. The
	// server waits MessageWait for CONFIRM.
	LetGoWait = MessageWait / 2
)

// errInternal means that the driver did something that it must not do.
var errInternal = errors.New("internal error of the rendezvous")

// Config is what a machine knows at its beginning.
type Config struct {
	// PeerID is the peer ID of this host, or zero if the stack has used no device yet.
	PeerID smc.PeerID
	// Hostname is told to peers of version 2.
	Hostname string
	// ConfirmWait is how long a server waits for CONFIRM on an existing link group.
	ConfirmWait time.Duration
	// ProposalWait is how long a server waits for PROPOSAL, without Look: MessageWait if it is 0.
	ProposalWait time.Duration
	// Look has a server look at the peer's first bytes before it reads. If they are no
	// CLC message, the outcome is a refusal with NotCLC.
	Look bool
	// OptionSeen says, with Look, that the peer announced SMC in the TCP handshake: then
	// a peer that sends nothing is broken. Otherwise it is one that does not speak CLC.
	OptionSeen bool
	// NotCLC is the outcome for a peer that does not speak CLC.
	NotCLC Refusal
	// Held says that a program waits in connect() or accept() until it is let go: that of a
	// client before that of the server, see letgo.go.
	Held bool
}

// Outcome is how a rendezvous has ended: with SMC-R if both fields are nil.
type Outcome struct {
	// Refused says why TCP carries the data. No CLC message follows on it.
	Refused *Refusal
	// Err says why the TCP connection has to be reset.
	Err error
}

// made says what the machine has to give back if the rendezvous fails.
type made uint8

const (
	madeNothing  made = iota
	madeConn          // a connection on an existing link group
	madeAttached      // the same, attached
	madeGroup         // a link group, with its connection
)

// handler is what an event does.
type handler func(m *Machine, now time.Time, ev Event)

// transition is an entry of a table: what an event does in a state, and to which states
// it leads.
type transition struct {
	in State
	on EventKind
	to []State
	do handler
}

// to lists the states that follow.
func to(s ...State) []State { return s }

// fallback says what events do in the states whose table has nothing for them.
type fallback [numEvents]handler

// table says what each event does in each state.
type table struct {
	rows [numStates][numEvents]*transition // nil: see any
	any  *fallback
}

// newTable makes a table of lists of transitions.
func newTable(any *fallback, lists ...[]transition) *table {
	t := &table{any: any}
	for _, list := range lists {
		for i := range list {
			tr := &list[i]
			if t.rows[tr.in][tr.on] != nil {
				panic("rendezvous: two transitions for " + tr.on.String() + " in state " + tr.in.String())
			}
			t.rows[tr.in][tr.on] = tr
		}
	}
	return t
}

// Machine is one side of a rendezvous. See the package comment.
type Machine struct {
	table *table
	conf  Config
	trace func(from State, on EventKind, to State) // tests

	// The side that the machine is, with what that side alone knows; the other is nil.
	client *client
	server *server
	// llc is what both sides know of the first contact of a link group.
	llc llcPhase

	state    State
	deadline time.Time // zero: none
	late     bool      // the deadline has passed once, see LateGrace
	part     []byte    // of the message that is being received
	ended    bool      // the peer has closed TCP
	actions  []Action
	outcome  Outcome

	host    Host
	peerID  smc.PeerID // of this host
	version version    // that of the messages from now on
	answer  *answer    // client: ACCEPT; server: CONFIRM
	made    made
	no      refused
}

func newMachine(t *table, c Config) *Machine {
	m := &Machine{table: t, conf: c, peerID: c.PeerID, version: &version1{}}
	m.llc.Machine = m
	return m
}

// asClient, asServer and asLLCPhase are handlers of one part of the machine.
func asClient(do func(*client, time.Time, Event)) handler {
	return func(m *Machine, now time.Time, ev Event) { do(m.client, now, ev) }
}

func asServer(do func(*server, time.Time, Event)) handler {
	return func(m *Machine, now time.Time, ev Event) { do(m.server, now, ev) }
}

func asLLCPhase(do func(*llcPhase, time.Time, Event)) handler {
	return func(m *Machine, now time.Time, ev Event) { do(&m.llc, now, ev) }
}

// State returns the state of the machine.
func (m *Machine) State() State { return m.state }

// Deadline returns when the machine is to get a [Tick] if nothing happens before: the
// zero Time for never.
func (m *Machine) Deadline() time.Time { return m.deadline }

// Want returns how many bytes the machine takes from TCP now, at least: see [Rest]. It is
// 0 where what comes is not, or not yet, the machine's: it never takes more than the
// messages of the rendezvous.
func (m *Machine) Want() int {
	if !m.state.reads() || m.ended {
		return 0
	}
	return Rest(m.part)
}

// Rest returns how many bytes have to be read next for the CLC message that begins with
// part: the rest of the header, or that of the message. It is 0 for a whole message, and
// for what is no CLC message.
func Rest(part []byte) int {
	if len(part) < wire.HeaderLen {
		return wire.HeaderLen - len(part)
	}
	h, err := wire.ParseHeader(part)
	if err != nil {
		return 0
	}
	return max(0, h.Length-len(part))
}

// Outcome returns how the rendezvous has ended. It is valid in state [Over].
func (m *Machine) Outcome() Outcome { return m.outcome }

// TakeActions appends the actions to be carried out to dst, and returns it.
func (m *Machine) TakeActions(dst []Action) []Action {
	dst = append(dst, m.actions...)
	clear(m.actions)
	m.actions = m.actions[:0]
	return dst
}

// Handle takes an event that happens at now. Events in state [Over], and a [Tick] before
// the deadline, do nothing.
func (m *Machine) Handle(now time.Time, ev Event) {
	switch ev := ev.(type) {
	case Received:
		m.received(now, ev.Bytes)
		return
	case EOF, ReadFailed:
		if len(m.part) > 0 {
			m.handle(now, garbage{fmt.Errorf("read %s: %w", m.partName(), cutOff(ev))})
			return
		}
	case Tick:
		if m.deadline.IsZero() || now.Before(m.deadline) {
			return
		}
	}
	m.handle(now, ev)
}

func (m *Machine) handle(now time.Time, ev Event) {
	if m.state == Over {
		return
	}
	on, from := ev.kind(), m.state
	do := m.table.any[on]
	if tr := m.table.rows[from][on]; tr != nil {
		do = tr.do
	}
	if do != nil {
		do(m, now, ev)
	} else {
		m.fail(fmt.Errorf("%w: %s in state %s", errInternal, on, from))
	}
	if m.trace != nil {
		m.trace(from, on, m.state)
	}
}

// received takes bytes of a message.
func (m *Machine) received(now time.Time, b []byte) {
	if m.state == Over {
		return
	}
	if m.state != Draining && m.Want() == 0 {
		m.fail(fmt.Errorf("%w: %d bytes in state %s", errInternal, len(b), m.state))
		return
	}
	m.part = append(m.part, b...)
	if len(m.part) < wire.HeaderLen {
		return
	}
	h, err := wire.ParseHeader(m.part)
	if err != nil {
		m.handle(now, garbage{fmt.Errorf("the peer did not send a CLC message: %w", err)})
		return
	}
	switch {
	case len(m.part) < h.Length:
		return
	case len(m.part) > h.Length:
		m.fail(fmt.Errorf("%w: %d bytes behind a message", errInternal, len(m.part)-h.Length))
		return
	}
	clc, err := wire.ParseCLC(m.part[:h.Length])
	if err != nil {
		m.handle(now, garbage{err})
		return
	}
	m.part = m.part[:0]
	m.handle(now, message{clc})
}

// partName names what is being received.
func (m *Machine) partName() string {
	if h, err := wire.ParseHeader(m.part); err == nil {
		return h.Type.String()
	}
	return "CLC header"
}

// cutOff returns the error of a message whose rest does not come.
func cutOff(ev Event) error {
	if f, ok := ev.(ReadFailed); ok {
		return f.Err
	}
	return io.ErrUnexpectedEOF
}

// do asks for actions.
func (m *Machine) do(a ...Action) { m.actions = append(m.actions, a...) }

// enter goes to a state without a deadline.
func (m *Machine) enter(s State) {
	m.state, m.deadline, m.late = s, time.Time{}, false
}

// await goes to a state that ends at a deadline.
func (m *Machine) await(s State, deadline time.Time) {
	m.enter(s)
	m.deadline = deadline
}

// send sends a message, in state s.
func (m *Machine) send(s State, msg wire.CLC) {
	m.enter(s)
	m.do(Send{msg})
}

// attached is the end of a rendezvous with SMC-R.
func (m *Machine) attached(time.Time, Event) { m.end(Outcome{}) }

// fail ends the rendezvous so that TCP is of no use either.
func (m *Machine) fail(err error) {
	m.giveBack()
	m.end(Outcome{Err: err})
}

// stayTCP ends the rendezvous with TCP.
func (m *Machine) stayTCP(why *Refusal) {
	m.giveBack()
	m.end(Outcome{Refused: why})
}

func (m *Machine) end(o Outcome) {
	m.outcome = o
	m.enter(Over)
	m.part = nil
}

// giveBack gives back what was made.
func (m *Machine) giveBack() {
	switch m.made {
	case madeConn:
		m.do(CancelConn{})
	case madeAttached:
		m.do(AbortConn{})
	case madeGroup:
		m.do(EndGroup{})
	}
	m.made = madeNothing
}
