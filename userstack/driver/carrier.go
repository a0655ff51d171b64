// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/conn"
	"smcr/userstack/engine"
	"smcr/userstack/internal/inside"
	"smcr/userstack/relay"
)

// Carriage is the part of a connection that lets the engine carry its bytes.
type Carriage struct {
	c *Conn
	p atomic.Pointer[carrier] // nil: not attached
}

// carrier moves the bytes between a connection and a program's socket on the engine's thread,
// so no goroutine has to be woken. Data that arrives is written to the socket at once. Data
// that the program writes goes into the send buffer at once.
//
// It works while the connection rides, which needs no goroutine, and while goroutines are in
// ReadFrom or WriteTo. These own the two directions and wait here. Anything that is not plain
// data (errors, resets, urgent bytes, the end of the connection) ends the ride
// and the wait. Then a goroutine handles it, as without an engine. The end of a stream travels like
// data, behind it: see carrier_ends.go.
//
//	direction | begins               | moves bytes when               | is handed back when
//	in        | Ride, ReadFrom waits | the socket is readable and the | the socket has an urgent byte, failed or was
//	          |                      | send buffer has room           | reset; the connection takes no more, and the
//	          |                      |                                | program has written more
//	out       | Ride, WriteTo waits  | data has arrived and the       | the socket failed; the connection has an
//	          |                      | socket has room                | urgent byte or failed
//
//	state           | event                                    | next state
//	rides           | a direction is handed back; Recall;      | goroutines, which back starts
//	                | both directions have ended               |
//	goroutines      | ReadFrom and WriteTo both wait, and no   | ErrRides for both; the caller may Ride
//	                | Recall came                              |
//	either          | Detach                                   | not attached
//
// A direction that was not handed back continues while the goroutines start.
type carrier struct {
	c    *Conn
	sock *engine.Socket
	task *engine.Task
	both func()           // moveBoth, kept so that calling it allocates nothing
	use  func(fd uintptr) // moveOn, likewise
	msg  engine.Message   // used by the loop

	mu       sync.Mutex // guards what follows; taken before the group's
	in       direction
	out      direction
	plain    bool   // the last event was of data only, and nothing was read since; see moveIn
	current  bool   // events are of the time since in is active
	back     func() // while the connection rides
	mayRide  bool   // Ride was called
	recalled bool
	left     bool // the round has closed the connection: Ending.left must follow
}

// direction is one of the two directions of a carrier.
type direction struct {
	active  bool // the loop moves bytes
	over    bool // it was handed back, and no goroutine has taken it yet
	ended   bool // its stream has ended, and the loop has passed that on; never active any more
	waiting bool // a goroutine waits at back
	ready   bool // the socket may be readable, or have room
	n       int64
	err     error // error of the socket; io.EOF at its end
	back    chan struct{}
}

// Loop returns the engine that serves the connection, or nil. The socket for Attach must
// belong to it.
func (x *Carriage) Loop() *engine.Loop { return x.c.g.loop }

// Attach makes the engine move the bytes between the connection and a program's socket, while
// the connection rides, or while ReadFrom and WriteTo are called for this socket (see
// [inside.EngineEnd]). Detach ends this. Call Detach before the socket is closed.
func (x *Carriage) Attach(sock *engine.Socket) {
	c := x.c
	k := &carrier{c: c, sock: sock}
	k.in = direction{ready: true, back: make(chan struct{}, 1)}
	k.out = direction{ready: true, back: make(chan struct{}, 1)}
	k.task, k.both, k.use = sock.Loop().Task(k.move), k.moveBoth, k.moveOn
	x.p.Store(k)
	sock.OnFault(k.fault)
	sock.Hook(k.events)
}

// Detach ends Attach: ReadFrom and WriteTo continue without the engine.
func (x *Carriage) Detach() {
	k := x.p.Swap(nil)
	if k == nil {
		return
	}
	k.sock.Hook(nil)
	k.sock.OnFault(nil)
	k.mu.Lock()
	k.handBack(&k.in)
	k.handBack(&k.out)
	k.mu.Unlock()
}

// Ride makes the engine move the bytes of an attached connection in both directions, without
// goroutines. Nobody may call ReadFrom and WriteTo until back is called. back is called once,
// possibly at once, and must not block. ReadFrom and WriteTo return [relay.ErrRides] when the
// connection can ride again. Ride returns false if the connection is not attached.
func (x *Carriage) Ride(back func()) bool {
	k := x.p.Load()
	if k == nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if x.p.Load() != k {
		return false
	}
	k.back, k.mayRide = back, true
	k.begin(&k.in)
	k.begin(&k.out)
	if k.recalled {
		k.endRide()
	}
	return true
}

// Recall ends the ride of an attached connection. The connection cannot ride again, because
// the caller needs its goroutines.
func (x *Carriage) Recall() {
	k := x.p.Load()
	if k == nil {
		return
	}
	k.mu.Lock()
	k.recalled = true
	k.endRide()
	k.mu.Unlock()
}

// events is called by the loop.
func (k *carrier) events(readable, writable, plain bool) {
	k.mu.Lock()
	if readable {
		k.in.ready, k.plain = true, plain && k.current
	}
	k.out.ready = k.out.ready || writable
	k.mu.Unlock()
	k.task.Schedule()
}

// CarryIn and CarryOut move bytes in one direction until there is something else than data.
// They return the number of bytes and the error of the socket. If end is not the socket of
// Attach, they return at once, with 0 and nil.
func (x *Carriage) CarryIn(end any) (n int64, err error) {
	if k := x.carrierOf(end); k != nil {
		return k.wait(&k.in)
	}
	return 0, nil
}

// CarryOut writes data that has arrived to the socket: see CarryIn.
func (x *Carriage) CarryOut(end any) (n int64, err error) {
	if k := x.carrierOf(end); k != nil {
		return k.wait(&k.out)
	}
	return 0, nil
}

func (x *Carriage) carrierOf(end any) *carrier {
	k := x.p.Load()
	if k == nil {
		return nil
	}
	if e, ok := end.(inside.EngineEnd); !ok || e.Conn() != syscall.Conn(k.sock) {
		return nil
	}
	return k
}

// begin makes the loop move bytes in direction d. mu is held.
func (k *carrier) begin(d *direction) {
	if d.active || d.over || d.ended {
		return
	}
	d.active, d.n, d.err = true, 0, nil
	if d == &k.in {
		// There may be other readers since the last event of epoll.
		d.ready, k.plain, k.current = true, false, false
	}
	k.task.Schedule()
}

// wait makes the loop move bytes in direction d, and returns when the loop hands d back.
func (k *carrier) wait(d *direction) (n int64, err error) {
	k.mu.Lock()
	if k.c.Carried.p.Load() != k && !d.ended {
		d.active, d.over = false, false
		k.mu.Unlock()
		return 0, nil
	}
	k.begin(d)
	if d.active {
		d.waiting = true
		if k.in.waiting && k.out.waiting && k.mayRide && !k.recalled {
			k.in.err, k.out.err = relay.ErrRides, relay.ErrRides
			k.handBack(&k.in)
			k.handBack(&k.out)
		}
		k.mu.Unlock()
		<-d.back
		k.mu.Lock()
	}
	d.over = false
	n, err = d.n, d.err
	k.mu.Unlock()
	return n, err
}

// handBack ends the work of the loop in a direction. mu is held.
func (k *carrier) handBack(d *direction) {
	if !d.active {
		return
	}
	d.active, d.over = false, true
	d.tell()
	k.endRide()
}

// tell wakes the goroutine that waits. mu is held.
func (d *direction) tell() {
	if d.waiting {
		d.waiting = false
		d.back <- struct{}{}
	}
}

// endRide calls back, so that goroutines start. mu is held.
func (k *carrier) endRide() {
	if back := k.back; back != nil {
		k.back = nil
		back()
	}
}

// move moves the bytes that can be moved now. It runs in the loop.
func (k *carrier) move() {
	k.mu.Lock()
	defer k.leave()
	if k.in.active || k.out.active {
		if err := k.sock.Control(k.use); err != nil {
			k.in.err, k.out.err = err, err
			k.handBack(&k.in)
			k.handBack(&k.out)
		}
	}
}

// leave is deferred by move. It releases mu, and ends the connection after a panic.
func (k *carrier) leave() {
	v := recover()
	k.mu.Unlock()
	if v != nil {
		k.c.g.s.Guard.Caught("the carriage of a connection", v)
		k.fault()
	}
}

// fault ends the connection after a panic in its carriage. Its goroutines find out why.
func (k *carrier) fault() {
	_ = k.c.End.Abort()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.handBack(&k.in)
	k.handBack(&k.out)
	k.endRide()
}

// moveOn is move while the descriptor of the socket stays open. k.mu is held.
func (k *carrier) moveOn(uintptr) {
	g := k.c.g
	g.mu.Lock()
	g.call(k.both)
	g.unlockLate(k.sock.Loop())
	if k.left {
		k.left = false
		k.c.End.left()
	}
}

// moveBoth moves bytes in both directions. k.mu and the group's lock are held.
func (k *carrier) moveBoth() {
	if k.in.ended {
		k.lookBehind()
	}
	if k.out.active {
		k.moveOut()
	}
	if k.in.active {
		k.moveIn()
	}
}

// moveOut writes data that has arrived to the program. k.mu and g.mu are held.
func (k *carrier) moveOut() {
	c, d := k.c, &k.out
	for {
		a, b, err := c.In.readable()
		if err == io.EOF && !c.In.deadline.expired() && !(c.core.AtMark() && c.In.urgentApart()) {
			k.endOut()
			return
		}
		if err != nil || c.In.deadline.expired() || c.core.AtMark() && (len(a) > 0 || c.In.urgentApart()) {
			k.handBack(d)
			return
		}
		if len(a) == 0 || !d.ready {
			return
		}
		send := k.sock.Send
		if c.core.RecvEnd() == io.EOF && !c.In.urgentApart() {
			// The program is woken by the end, too: who closes behind data that it knows to be the last must not be the first who closes.
			send = k.sock.SendLast
		}
		n, errno := send(&k.msg, a, b)
		if n > 0 {
			d.n += int64(n)
			c.core.Consumed(time.Now(), n)
			c.rxBytes += uint64(n)
			c.In.received(n, len(a)+len(b))
		}
		switch {
		case errno == unix.EAGAIN:
			d.ready = false
			k.sock.AwaitRoom()
			return
		case errno == unix.EINTR:
		case errno != 0:
			d.err = errno
			k.handBack(d)
			return
		}
	}
}

// moveIn reads what the program has written, as one piece for the peer. k.mu and g.mu are
// held.
//
// A read must not begin at an urgent byte, because it would skip the byte. It may reach one:
// it ends there. In most cases, the event of epoll is enough to know. epoll reports POLLPRI
// as long as an urgent byte is in the queue, and a byte that is in the queue does not become
// urgent later. So after an event of plain data only, the first byte is not urgent until it
// is read. After a short read, the queue contains only bytes that came after that event, or
// after the poll, and these cause a new event.
func (k *carrier) moveIn() {
	c, d := k.c, &k.in
	k.current = true
	switch err := c.Out.writable(); {
	case err == conn.ErrPeerClosed && !c.Out.deadline.expired():
		k.look()
		return
	case err != nil || c.Out.deadline.expired():
		k.handBack(d)
		return
	}
	ended := false
	var a, b []byte
	total, here := 0, 0 // bytes read, and those of them in the last memory from reserve
	defer func() {
		if total == 0 {
			c.Out.dropSpace()
		} else {
			d.n += int64(total)
			c.Out.produced(time.Now(), here, false)
			c.txBytes += uint64(total)
			c.g.s.Stats.TX(total, total)
		}
		if ended {
			k.endIn()
		}
	}()
	for d.ready {
		if len(a) == 0 {
			a, b = b, nil
		}
		if len(a) == 0 {
			c.Out.placed(here)
			here = 0
			var err error
			if a, b, err = c.Out.reserve(1, c.core.SendChunk()); err != nil {
				k.handBack(d)
				return
			}
			if len(a) == 0 {
				return // ActWakeWrite comes
			}
		}
		other := false // something other than data was there before the read
		if !k.plain {
			readable, mark, plain := k.sock.Pending()
			switch {
			case !readable:
				d.ready = false
				return
			case mark:
				k.handBack(d)
				return
			}
			other = !plain
		}
		k.plain = false
		n, errno := k.sock.Recv(&k.msg, a, b)
		switch {
		case errno == unix.EINTR:
		case errno == unix.EAGAIN:
			d.ready = false
			return
		case errno != 0:
			d.err = errno
			k.handBack(d)
			return
		case n == 0:
			ended = true
			return
		default:
			total, here = total+n, here+n
			if n < len(a)+len(b) && !other {
				d.ready = false
				return
			}
			m := min(n, len(a))
			a, b = a[m:], b[n-m:]
		}
	}
}
