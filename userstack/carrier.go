// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"io"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/stats"
	"smcr/userstack/engine"
)

// carrier moves the bytes between a connection and a program's socket on the
// engine's thread, without a goroutine to wake: what arrives is written to the
// socket at once, and what the program writes goes into the send buffer at once.
//
// It works while a goroutine is in ReadFrom or WriteTo, which own the two
// directions and wait here. Whatever is not plain data (the end of a stream,
// errors, urgent bytes, the end of the connection) ends the wait, and the
// goroutine deals with it as it would without an engine.
//
//	direction | begins         | moves bytes when               | is handed back when
//	in        | ReadFrom waits | the socket is readable and the | the socket has an urgent byte, ended or
//	          |                | send buffer has room           | failed; the connection takes no more
//	out       | WriteTo waits  | data has arrived and the       | the socket failed; the connection has an
//	          |                | socket has room                | urgent byte, ended or failed
type carrier struct {
	c    *Conn
	sock *engine.Socket
	task *engine.Task
	both func() // moveBoth, kept so that calling it allocates nothing
	fd   int    // valid while a goroutine waits

	msg unix.Msghdr // used by the loop
	iov [2]unix.Iovec

	mu  sync.Mutex // guards what follows; taken before the group's
	in  carried
	out carried
}

// carried is a direction.
type carried struct {
	active bool // a goroutine waits at back
	ready  bool // the socket may be readable, or have room
	n      int64
	err    error // of the socket; io.EOF at its end
	back   chan struct{}
}

// Attach lets the engine carry the bytes between c and a program's socket while
// ReadFrom and WriteTo are called with what [Carried] finds to be that socket.
// Detach ends that, before the socket is closed.
func (c *Conn) Attach(sock *engine.Socket) {
	k := &carrier{c: c, sock: sock}
	k.in = carried{ready: true, back: make(chan struct{}, 1)}
	k.out = carried{ready: true, back: make(chan struct{}, 1)}
	k.task, k.both = sock.Loop().Task(k.move), k.moveBoth
	c.carrier.Store(k)
	sock.Hook(k.events)
}

// Detach undoes Attach: ReadFrom and WriteTo go on without the engine.
func (c *Conn) Detach() {
	k := c.carrier.Swap(nil)
	if k == nil {
		return
	}
	k.sock.Hook(nil)
	k.mu.Lock()
	k.handBack(&k.in)
	k.handBack(&k.out)
	k.mu.Unlock()
}

// A Carried is a reader or writer that stands for a socket of the engine.
type Carried interface {
	// Conn returns that socket.
	Conn() syscall.Conn
}

// kick has the carrier look at its connection, and a goroutine that waits in the
// place of the engine too.
func (c *Conn) kick() {
	if c.drive != nil {
		c.drive.Poke()
	}
	if k := c.carrier.Load(); k != nil {
		k.task.Schedule()
	}
}

// events is called by the loop.
func (k *carrier) events(readable, writable bool) {
	k.mu.Lock()
	k.in.ready = k.in.ready || readable
	k.out.ready = k.out.ready || writable
	k.mu.Unlock()
	k.task.Schedule()
}

// carryIn and carryOut move bytes in one direction until something else than
// data is to be dealt with. They return the bytes moved and the socket's error,
// and nothing at once if end is not the socket of Attach.
func (c *Conn) carryIn(end any) (n int64, err error) {
	if k := c.carrierOf(end); k != nil {
		return k.wait(&k.in)
	}
	return 0, nil
}

func (c *Conn) carryOut(end any) (n int64, err error) {
	if k := c.carrierOf(end); k != nil {
		return k.wait(&k.out)
	}
	return 0, nil
}

func (c *Conn) carrierOf(end any) *carrier {
	k := c.carrier.Load()
	if k == nil {
		return nil
	}
	if e, ok := end.(Carried); !ok || e.Conn() != syscall.Conn(k.sock) {
		return nil
	}
	return k
}

// wait has the loop move bytes in direction d until it hands d back.
func (k *carrier) wait(d *carried) (n int64, err error) {
	cerr := k.sock.Control(func(fd uintptr) {
		k.mu.Lock()
		k.fd = int(fd)
		d.active, d.n, d.err = true, 0, nil
		if k.c.carrier.Load() == k {
			k.task.Schedule()
		} else {
			k.handBack(d)
		}
		k.mu.Unlock()
		<-d.back
		k.mu.Lock()
		n, err = d.n, d.err
		k.mu.Unlock()
	})
	if cerr != nil {
		return n, cerr
	}
	return n, err
}

// handBack ends the wait for a direction. mu is held.
func (k *carrier) handBack(d *carried) {
	if d.active {
		d.active = false
		d.back <- struct{}{}
	}
}

// move carries what can be carried now. It runs in the loop.
func (k *carrier) move() {
	g := k.c.g
	k.mu.Lock()
	if !k.in.active && !k.out.active {
		k.mu.Unlock()
		return
	}
	g.mu.Lock()
	g.call(k.both)
	g.unlock()
	k.mu.Unlock()
}

// moveBoth carries in both directions. k.mu and the group's are held.
func (k *carrier) moveBoth() {
	if k.out.active {
		k.moveOut()
	}
	if k.in.active {
		k.moveIn()
	}
}

// moveOut writes what has arrived to the program. k.mu and g.mu are held.
func (k *carrier) moveOut() {
	c, d := k.c, &k.out
	for {
		a, b, err := c.readable()
		if err != nil || c.rdl.expired() || len(a) > 0 && c.core.AtMark() {
			k.handBack(d)
			return
		}
		if len(a) == 0 || !d.ready {
			return
		}
		n, errno := k.send(a, b)
		if n > 0 {
			d.n += int64(n)
			c.core.Consumed(time.Now(), n)
			c.rxBytes += uint64(n)
			c.s.stats.RX(n)
		}
		switch {
		case errno == unix.EAGAIN:
			d.ready = false
			return
		case errno == unix.EINTR:
		case errno != 0:
			d.err = errno
			k.handBack(d)
			return
		}
	}
}

// moveIn takes what the program has written, as one piece for the peer. k.mu and
// g.mu are held.
func (k *carrier) moveIn() {
	c, d := k.c, &k.in
	a, b, err := c.writable()
	if err != nil || c.wdl.expired() {
		k.handBack(d)
		return
	}
	total := 0
	defer func() {
		if total > 0 {
			d.n += int64(total)
			c.produced(time.Now(), total, false)
			c.txBytes += uint64(total)
			c.s.stats.TX(total, total)
		}
	}()
	for d.ready {
		if len(a) == 0 {
			a, b = b, nil
		}
		if len(a) == 0 {
			c.s.stats.Buffer(stats.TX, stats.Full)
			return // ActWakeWrite comes
		}
		switch revents := pollNow(k.fd, unix.POLLIN|unix.POLLPRI); {
		case revents == 0:
			d.ready = false
			return
		case revents&unix.POLLPRI != 0:
			if at, err := unix.IoctlGetInt(k.fd, unix.SIOCATMARK); err == nil && at != 0 {
				k.handBack(d)
				return
			}
		}
		n, errno := recv(k.fd, a)
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
			d.err = io.EOF
			k.handBack(d)
			return
		default:
			total += n
			a = a[n:]
		}
	}
}

// pollNow returns the events of fd.
func pollNow(fd int, events int16) int16 {
	p := unix.PollFd{Fd: int32(fd), Events: events}
	var zero unix.Timespec
	for {
		_, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&p)), 1, uintptr(unsafe.Pointer(&zero)), 0, 0, 0)
		if errno == unix.EINTR {
			continue
		}
		return p.Revents
	}
}

// recv and send never wait, whatever the socket's own flags say: a launcher has
// copies of the descriptor and may change these.
func recv(fd int, b []byte) (n int, errno syscall.Errno) {
	r, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(r), 0
}

func (k *carrier) send(a, b []byte) (n int, errno syscall.Errno) {
	count := 1
	k.iov[0].Base = unsafe.SliceData(a)
	k.iov[0].SetLen(len(a))
	if len(b) > 0 {
		count = 2
		k.iov[1].Base = unsafe.SliceData(b)
		k.iov[1].SetLen(len(b))
	}
	k.msg.Iov = &k.iov[0]
	k.msg.SetIovlen(count)
	r, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(k.fd), uintptr(unsafe.Pointer(&k.msg)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	// Nothing is to point to the buffers, which are mapped memory, once they
	// may be unmapped.
	k.iov = [2]unix.Iovec{}
	if errno != 0 {
		return 0, errno
	}
	return int(r), 0
}
