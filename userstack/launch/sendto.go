// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"hash/maphash"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// TCP ignores the address of sendto() on a connected socket. A unix socket refuses it with
// EISCONN. So the launcher does such a call itself, without the address. It sends what it
// reads from the memory of the program, in the order of the stream, on a copy of the
// program's end.
//
// sendmsg() and sendmmsg() have the address in memory, where the filter cannot see it.

const (
	// sendChunk is the number of bytes that are read from the program at once.
	sendChunk = 128 << 10
	// sendTick is the interval at which a call that waits for room looks whether a signal
	// has interrupted it. The next call of the thread waits that long.
	sendTick = 10 * time.Millisecond
	// maxOwed is the largest number of interrupted calls that a connection remembers.
	maxOwed = 16
)

// sendBuffers has buffers of sendChunk bytes.
var sendBuffers = sync.Pool{New: func() any { return new([sendChunk]byte) }}

// sendSeed is for sums of what was sent.
var sendSeed = maphash.MakeSeed()

// owed is what was sent for a call that did not wait for its answer any more.
type owed struct {
	bytes int
	sum   uint64 // of the bytes
}

// sends answers calls that send urgent data, or with sendto() to an address.
func (s *supervisor) sends(n *notif, c *conn) {
	if n.sendFlags()&unix.MSG_OOB != 0 && c.isDirect() {
		c.takesDetour(n)
	}
	if !n.sendsTo() {
		s.cont(n)
		return
	}
	c.calls.offer(c.s.ctx, &stoppedCall{n: n})
	c.mu.Lock()
	swapped := c.swapped
	var inode uint64
	if swapped {
		inode = c.pair.inode
	}
	c.mu.Unlock()
	if !swapped || s.connOf(n) != c {
		s.cont(n)
		return
	}
	(&sending{s: s, n: n, c: c, inode: inode, app: -1}).answer()
}

// sendFlags returns the flags of a call that sends.
func (n *notif) sendFlags() int {
	if n.Nr == unix.SYS_SENDMSG {
		return int(int32(n.Args[2]))
	}
	return int(int32(n.Args[3]))
}

// sendsTo reports whether n is sendto() with an address.
func (n *notif) sendsTo() bool {
	return n.Nr == unix.SYS_SENDTO && n.Args[4] != 0 && int32(n.Args[5]) != 0
}

// sending is one sendto() that the launcher does.
type sending struct {
	s     *supervisor
	n     *notif
	c     *conn
	inode uint64 // of the program's end

	app  int // a copy of the program's end, or -1
	size int // bytes that the call sends
	sent int
	sum  maphash.Hash // of what was sent
}

// answer does the call.
func (x *sending) answer() {
	// If a signal interrupts the call, the next one of the thread waits for the end of this
	// one, and then finds what was sent.
	defer x.n.l.stores.begin(x.n)()
	key := x.n.call()
	x.sum.SetSeed(sendSeed)
	x.size = int(min(x.n.Args[2], maxSend))
	err := x.begin()
	if x.app >= 0 {
		defer unix.Close(x.app)
	}
	switch {
	case errors.Is(err, errMoved) || errors.Is(err, errNotSocket):
		x.s.cont(x.n) // the descriptor is another one by now
		return
	case err != nil:
		x.s.fail(x.n, errnoOf(err))
		return
	case x.settled(key):
	default:
		err = x.send()
	}
	if x.sent > 0 || err == nil {
		if _, err := x.n.replyOnce(x.sent); isGone(err) {
			x.c.owe(key, owed{x.sent, x.sum.Sum64()})
		}
		return
	}
	x.s.fail(x.n, errnoOf(err))
	if errors.Is(err, unix.EPIPE) && x.n.sendFlags()&unix.MSG_NOSIGNAL == 0 {
		// A signal before the answer would make the kernel repeat the call.
		if tgid, err := x.s.looks.threads.tgid(x.n.tid()); err == nil {
			_ = unix.Tgkill(tgid, x.n.tid(), unix.SIGPIPE)
		}
	}
}

// maxSend is the largest number of bytes that one call transfers (MAX_RW_COUNT).
const maxSend = 0x7ffff000

// begin checks the address, as the kernel does before it sends, and copies the program's
// end.
func (x *sending) begin() error {
	l := int(int32(x.n.Args[5]))
	if l < 0 || l > unix.SizeofSockaddrAny+16 { // struct sockaddr_storage
		return unix.EINVAL
	}
	if _, err := x.n.read(x.n.Args[4], l, 0); err != nil {
		return sendError(err)
	}
	var err error
	x.app, err = x.s.looks.socket(x.n, x.n.tid(), x.n.fdArg(), x.inode, 0)
	return err
}

// sendError makes EFAULT of an error of reading memory, unless something else is exhausted.
func sendError(err error) error {
	if exhausted(err) {
		return err
	}
	return unix.EFAULT
}

// send sends until everything is sent, or the call has to end. It returns the error with
// which the call fails if nothing was sent.
func (x *sending) send() error {
	flags := x.n.sendFlags()
	wait := flags&unix.MSG_DONTWAIT == 0
	if wait {
		f, err := unix.FcntlInt(uintptr(x.app), unix.F_GETFL, 0)
		if err != nil {
			return err
		}
		wait = f&unix.O_NONBLOCK == 0
	}
	flags |= unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	var room *roomWait
	defer func() { room.close() }()
	for first := true; first || x.sent < x.size; first = false {
		b, free, err := x.read(min(sendChunk, x.size-x.sent))
		if err != nil {
			return err
		}
		n, err := x.sendAll(b, flags)
		free()
		switch {
		case err == nil && n == len(b):
		case !errors.Is(err, unix.EAGAIN):
			return err
		case !wait:
			return unix.EAGAIN
		default:
			if room == nil {
				room = x.newRoomWait()
			}
			if err := room.wait(); err != nil {
				return err
			}
		}
	}
	return nil
}

// sendAll sends b, as much as there is room for. Only the last byte of the call is urgent.
func (x *sending) sendAll(b []byte, flags int) (sent int, err error) {
	if x.sent+len(b) < x.size {
		flags &^= unix.MSG_OOB
	}
	for {
		var n int
		if !x.n.valid() { // then b may be the memory of another process
			return sent, unix.EINTR
		}
		n, err = unix.SendmsgN(x.app, b[sent:], nil, nil, flags)
		if err != nil {
			return sent, err
		}
		_, _ = x.sum.Write(b[sent : sent+n]) // cannot fail
		sent += n
		x.sent += n
		if sent == len(b) {
			return sent, nil
		}
	}
}

// read reads the next bytes from the memory of the program. free gives the buffer back. If a
// part is not there, TCP sends none of them either.
func (x *sending) read(size int) (b []byte, free func(), err error) {
	type result struct {
		buf *[sendChunk]byte
		err error
	}
	at := x.n.Args[1] + uint64(x.sent)
	r, err := looked(x.s.looks, x.n, x.n.tid(), 0, func() (result, func()) {
		buf := sendBuffers.Get().(*[sendChunk]byte)
		return result{buf, readMem(x.n.tid(), at, buf[:size])}, nil
	}, nil)
	if err != nil {
		return nil, nil, err
	}
	free = func() { sendBuffers.Put(r.buf) }
	if r.err != nil {
		free()
		return nil, nil, sendError(r.err)
	}
	return r.buf[:size], free, nil
}

// settled reports whether the call was done, in whole or in part, before a signal
// interrupted it: then that is its result.
func (x *sending) settled(key callID) bool {
	o, ok := x.c.owes(key)
	if !ok {
		return false
	}
	// The program may also have got EINTR, and send other bytes now.
	for x.sent < o.bytes {
		b, free, err := x.read(min(sendChunk, o.bytes-x.sent))
		if err != nil {
			break
		}
		_, _ = x.sum.Write(b)
		x.sent += len(b)
		free()
	}
	if x.sent == o.bytes && x.sum.Sum64() == o.sum {
		return true
	}
	x.sent = 0
	x.sum.Reset()
	return false
}

// owe remembers what was sent for a call that has got no answer.
func (c *conn) owe(key callID, o owed) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.report.owed == nil {
		c.report.owed = make(map[callID]owed)
	}
	for k := range c.report.owed {
		if len(c.report.owed) < maxOwed {
			break
		}
		delete(c.report.owed, k)
	}
	c.report.owed[key] = o
}

// owes returns what was sent for a call, and forgets it.
func (c *conn) owes(key callID) (owed, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok := c.report.owed[key]
	delete(c.report.owed, key)
	return o, ok
}

// roomWait waits until the program's end is writable.
type roomWait struct {
	x     *sending
	sub   *subscription
	ready chan struct{}
	late  <-chan time.Time // SO_SNDTIMEO
	timer *time.Timer
}

func (x *sending) newRoomWait() *roomWait {
	w := &roomWait{x: x, ready: make(chan struct{}, 1)}
	if d := sendTimeout(x.app); d > 0 {
		w.timer = time.NewTimer(d)
		w.late = w.timer.C
	}
	return w
}

// wait returns nil if the end may be writable, and otherwise why the call ends.
func (w *roomWait) wait() error {
	if w.sub == nil {
		sub, err := w.x.s.poll.watch(w.x.app, unix.EPOLLOUT|unix.EPOLLONESHOT, func(uint32) {
			select {
			case w.ready <- struct{}{}:
			default:
			}
		})
		if err != nil {
			return err
		}
		w.sub = sub
	} else {
		w.sub.again()
	}
	tick := time.NewTicker(sendTick)
	defer tick.Stop()
	for {
		select {
		case <-w.ready:
			return nil
		case <-w.late:
			return syscall.EAGAIN
		case <-tick.C:
			if !w.x.n.valid() {
				return unix.EINTR
			}
		case <-w.x.s.ctx.Done():
			return unix.EINTR
		}
	}
}

func (w *roomWait) close() {
	if w == nil {
		return
	}
	w.sub.stop()
	if w.timer != nil {
		w.timer.Stop()
	}
}
