// SPDX-License-Identifier: Apache-2.0

package joined

// Side is one of the two programs, with its end of the pair and its TCP socket.
type Side uint8

const (
	Client Side = iota // has called connect
	Server             // has called accept, or will
)

// Peer returns the other side.
func (s Side) Peer() Side { return 1 - s }

func (s Side) String() string {
	if s == Client {
		return "client"
	}
	return "server"
}

// Kind is the kind of an event.
type Kind uint8

const (
	// Placed: the program of the server has its end. There is no such event for the
	// client, because a Pair begins when the client has its end.
	Placed Kind = iota
	// Shut: the program has shut down writing.
	Shut
	// Closed: nobody has the end any more, except for the stack. All data was read.
	Closed
	// Aborted: the same, but there was data that nobody had read, or SO_LINGER is 0.
	Aborted
	// Late: the peer has written to an end after its Closed.
	Late
	// Killed: the TCP connection has ended, and not by an action.
	Killed
)

// Event is something that has happened at a side. The side of Killed does not matter.
type Event struct {
	Kind Kind
	Side Side
}

// Verb is what an action does.
type Verb uint8

const (
	// ShutEnd shuts down writing at an end. So the peer reads its data, and then the end of
	// the stream, but it can write.
	ShutEnd Verb = iota
	// CutEnd shuts down both directions at an end, and so at both ends. Both programs can
	// read what there is, and then the end of the stream. Their writes fail (EPIPE).
	CutEnd
	// DropEnd reads what an end has, and closes it. The peer can read its data, and then
	// the end of the stream.
	DropEnd
	// ResetEnd closes an end with unread data, so that the peer can read its data, and then
	// gets ECONNRESET.
	ResetEnd
	// AwaitLate asks for Late of an end.
	AwaitLate
	// Tell tells the program of a side, by its launcher, that the connection was reset.
	Tell

	// ShutTCP shuts down writing at a TCP socket.
	ShutTCP
	// CloseTCP closes a TCP socket.
	CloseTCP
	// ResetTCP closes a TCP socket with a reset.
	ResetTCP
	// PokeTCP sends a byte to a TCP socket whose peer is closed, so that the kernel resets
	// it.
	PokeTCP
)

// tcp reports whether the action is about a TCP socket.
func (v Verb) tcp() bool { return v >= ShutTCP }

// Action is what the stack must do, with the end or the TCP socket of a side.
type Action struct {
	Verb Verb
	Side Side
}

// state is the state of a side.
type state uint8

const (
	absent state = iota // the program has not accepted yet
	open
	shut   // the program has shut down writing, and has its end
	closed // nobody has the end, except for the stack, which keeps it for the peer's writes
	gone   // the stack has closed its descriptor of the end
)

// Pair is the state of a connection. It begins when the client has its end, and the server
// has not accepted.
type Pair struct {
	side   [2]state
	holds  [2]bool  // the stack has a descriptor of the end
	let    [2]bool  // Closed or Aborted was handled
	killed bool     // Killed was handled
	later  []Action // about TCP sockets, for after Placed
}

// New returns the state of a connection whose client has its end.
func New() *Pair {
	p := &Pair{holds: [2]bool{true, true}}
	p.side[Client] = open
	return p
}

// Done reports whether the stack has closed all descriptors. There are no events any more.
func (p *Pair) Done() bool {
	return p.let[Client] && (p.let[Server] || p.side[Server] == absent) && !p.holds[Client] && !p.holds[Server]
}

// Handle handles an event, and returns what to do, in this order.
//
//	event at X        X        Y             actions                          X becomes
//	-------------------------------------------------------------------------------------
//	Placed            absent   any           what was put off (1)             open
//	Shut              open     closed        ShutTCP X, DropEnd Y             shut
//	Shut              open     other         ShutTCP X                        shut
//	Closed            open     absent, open  ShutEnd X, CloseTCP X,           closed
//	                                         AwaitLate X
//	Closed            shut     absent, open  CloseTCP X, AwaitLate X          closed
//	Closed            any      shut          DropEnd X, CloseTCP X            gone
//	Closed            any      closed, gone  DropEnd Y (2), DropEnd X,        gone
//	                                         CloseTCP X
//	Aborted           open     not closed    ResetEnd X, ResetTCP X           gone
//	Aborted           shut     absent, open  CutEnd Y, DropEnd X, ResetTCP X  gone (3)
//	Aborted           shut     shut          DropEnd X, CloseTCP X            gone
//	Aborted           any      closed, gone  DropEnd Y (2), DropEnd X,        gone
//	                                         ResetTCP X
//	Late              closed   any           CutEnd Y, DropEnd X, PokeTCP Y   gone (3)
//	Killed            open or  absent        ResetEnd Y, Tell X               the same
//	                  shut
//	Killed            open or  open or shut  CutEnd X, Tell X, Tell Y         the same
//	                  shut
//	Killed            closed   open or shut  CutEnd Y, DropEnd X, Tell Y      gone
//	Killed            closed   absent        DropEnd X, DropEnd Y             gone
//	Killed            gone     absent        DropEnd Y                        the same
//	Killed            gone     other         nothing: it is a consequence     the same
//
// (1) As long as the server has not accepted, its TCP socket must stay as it is, for the
// case that a program gets the connection without the stack. So actions of the client's TCP
// socket wait.
// (2) If the stack has it.
// (3) TCP resets a connection in CLOSE-WAIT with EPIPE, not ECONNRESET, and a program that
// reads still gets the end of the stream.
//
// What is not in the table does nothing.
func (p *Pair) Handle(ev Event) []Action {
	x, y := ev.Side, ev.Side.Peer()
	var out []Action
	do := func(v Verb, s Side) {
		switch v {
		case DropEnd, ResetEnd:
			if !p.holds[s] {
				return
			}
			p.holds[s] = false
		}
		if v.tcp() && p.side[Server] == absent && !p.killed {
			p.later = append(p.later, Action{v, s})
			return
		}
		out = append(out, Action{v, s})
	}
	switch ev.Kind {
	case Placed:
		if p.side[x] != absent {
			break
		}
		p.side[x] = open
		out, p.later = p.later, nil
	case Shut:
		if p.side[x] != open {
			break
		}
		p.side[x] = shut
		do(ShutTCP, x)
		if p.side[y] == closed {
			p.side[y] = gone
			do(DropEnd, y)
		}
	case Closed, Aborted:
		if p.let[x] || p.side[x] == absent {
			break
		}
		p.let[x] = true
		p.close(ev.Kind == Aborted, x, y, do)
	case Late:
		if p.side[x] != closed {
			break
		}
		p.side[x] = gone
		do(CutEnd, y)
		do(DropEnd, x)
		do(PokeTCP, y)
	case Killed:
		consequence := (p.side[x] == gone || p.side[y] == gone) && p.side[Server] != absent
		if !p.killed && !consequence {
			p.killed = true
			out = append(out, p.later...)
			p.later = nil
			p.kill(do)
		}
	}
	return out
}

// close handles Closed and Aborted.
func (p *Pair) close(abort bool, x, y Side, do func(Verb, Side)) {
	had := p.side[x]
	p.side[x] = gone
	over := p.side[y] == closed || p.side[y] == gone || p.killed
	switch {
	case over:
		if p.side[y] == closed {
			p.side[y] = gone
			do(DropEnd, y)
		}
		do(DropEnd, x)
	case abort && had == open:
		do(ResetEnd, x)
	case abort && p.side[y] != shut:
		do(CutEnd, y)
		do(DropEnd, x)
	case p.side[y] == shut:
		do(DropEnd, x)
		abort = false
	default:
		p.side[x] = closed
		if had == open {
			do(ShutEnd, x)
		}
		do(CloseTCP, x)
		do(AwaitLate, x)
		return
	}
	if abort {
		do(ResetTCP, x)
	} else {
		do(CloseTCP, x)
	}
}

// kill handles Killed.
func (p *Pair) kill(do func(Verb, Side)) {
	has := func(s Side) bool { return p.side[s] == open || p.side[s] == shut }
	for _, x := range []Side{Client, Server} {
		y := x.Peer()
		switch {
		case has(x) && has(y):
			if x == Client {
				do(CutEnd, x)
			}
		case has(x) && p.side[y] == absent:
			do(ResetEnd, y)
		case has(x):
			do(CutEnd, x)
		case p.side[x] == closed:
			if has(y) {
				continue // after CutEnd
			}
			p.side[x] = gone
			do(DropEnd, x)
		case p.side[x] == absent:
			do(DropEnd, x)
		}
	}
	for _, x := range []Side{Client, Server} {
		y := x.Peer()
		if !has(x) {
			continue
		}
		if p.side[y] == closed {
			p.side[y] = gone
			do(DropEnd, y)
		}
		do(Tell, x) // last: a launcher may write into the end
	}
}
