// SPDX-License-Identifier: Apache-2.0

package simfabric

import (
	"io"
	"math/rand/v2"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/userstack/engine"
)

// socketpair is the connection between a program and a loop. It behaves like a socketpair of
// AF_UNIX, with which tests can compare it step by step, and like TCP after a reset. World.mu guards it.
//
//	At one end                | at the other end
//	shutdown(SHUT_WR)         | the end of the stream, after all written data
//	close                     | the same; writing fails with EPIPE
//	close with data unread    | ECONNRESET once, after all written data; writing: EPIPE
//	shutdown(SHUT_RDWR)       | the end of the stream, after all written data; writing: EPIPE
//	Abort, Reset              | ECONNRESET once, after all written data; writing: EPIPE. Behind the
//	                          | end of a stream, no read returns it: only EPOLLERR tells
//	a reader makes room       | EPOLLOUT, when at most a quarter of the buffer is used
type socketpair struct {
	w       *World
	rng     *rand.Rand
	size    int  // capacity of each direction in bytes
	up      pipe // to the loop
	down    pipe // to the program
	watch   *watch
	asked   uint32 // the events that the loop waits for
	changed bool   // something has changed since the program last called Woken
}

// pipe is one direction of a socketpair. It is named after its reader: up to the loop,
// down to the program.
type pipe struct {
	buf    []byte
	pos    int64         // position of buf[0] in the stream
	mark   int64         // position of the last urgent byte, -1 if there was none
	fin    bool          // the writer writes no more
	closed bool          // the reader is closed
	err    syscall.Errno // the next error of the reader
	behind bool          // the writer has reset the connection after fin
}

func (p *pipe) urgent() bool { return p.mark >= p.pos && p.mark < p.pos+int64(len(p.buf)) }

func (p *pipe) atMark() bool { return p.urgent() && p.mark == p.pos }

// read reads at most len(b) bytes. It stops before an urgent byte.
func (p *pipe) read(b []byte) (n int, errno syscall.Errno) {
	switch {
	case p.closed:
		return 0, syscall.EBADF
	case len(p.buf) > 0:
		src := p.buf
		if p.urgent() && p.mark > p.pos {
			src = src[:p.mark-p.pos]
		}
		n = copy(b, src)
		p.buf = p.buf[n:]
		p.pos += int64(n)
		return n, 0
	case p.err != 0:
		errno, p.err = p.err, 0
		return 0, errno
	case p.fin:
		return 0, 0
	}
	return 0, syscall.EAGAIN
}

func (p *pipe) readable() bool { return len(p.buf) > 0 || p.err != 0 || p.fin }

// write writes as many bytes of b as there is room for.
func (p *pipe) write(b []byte, size int, urgent bool) (n int, errno syscall.Errno) {
	if p.fin || p.closed {
		return 0, syscall.EPIPE
	}
	if n = min(len(b), size-len(p.buf)); n <= 0 {
		return 0, syscall.EAGAIN
	}
	p.buf = append(p.buf, b[:n]...)
	if urgent && n == len(b) {
		p.mark = p.pos + int64(len(p.buf)) - 1
	}
	return n, 0
}

// hasSpace reports whether poll reports that the writer can write.
func (p *pipe) hasSpace(size int) bool { return 4*len(p.buf) <= size }

// close closes the reader of p, which is the writer of o.
func (p *pipe) close(o *pipe) {
	if len(p.buf) > 0 {
		o.err = syscall.ECONNRESET
	}
	p.closed, o.fin = true, true
	p.buf = nil
}

// Pair makes a socketpair with a capacity of size bytes in each direction. It returns the
// loop's end and the program's end.
func (l *Loop) Pair(size int) (*engine.Socket, *Program) {
	w := l.src.w
	w.mu.Lock()
	w.lastID++
	p := &socketpair{w: w, rng: w.random(atPair, uint32(w.lastID)), size: size, up: pipe{mark: -1}, down: pipe{mark: -1}}
	p.watch = &watch{src: l.src}
	w.count.Sockets++
	w.mu.Unlock()
	return l.NewStream((*loopEnd)(p)), &Program{p}
}

// loopEnd is the loop's end of a pair. It implements rounds.Stream.
type loopEnd socketpair

// Watch implements rounds.Stream.
func (e *loopEnd) Watch(asked uint32, f func(events uint32)) (stop func()) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	e.asked = asked
	e.watch.f = func() {
		e.w.mu.Lock()
		events := e.events() & (e.asked | unix.EPOLLHUP | unix.EPOLLERR)
		e.w.mu.Unlock()
		if events != 0 {
			f(events)
		}
	}
	e.watch.raise()
	return func() {
		e.w.mu.Lock()
		defer e.w.mu.Unlock()
		e.watch.f = func() {}
	}
}

// Change implements rounds.Stream.
func (e *loopEnd) Change(asked uint32) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	e.asked = asked
	e.watch.raise()
}

// events returns the events that epoll would report now.
func (e *loopEnd) events() (events uint32) {
	if e.up.closed {
		return 0
	}
	for _, c := range []struct {
		on  bool
		bit uint32
	}{
		{e.up.readable(), unix.EPOLLIN},
		{e.up.urgent(), unix.EPOLLPRI},
		{e.up.fin, unix.EPOLLRDHUP},
		{e.up.fin && e.down.fin || e.down.closed, unix.EPOLLHUP},
		{e.up.err != 0 || e.up.behind, unix.EPOLLERR},
		{e.down.hasSpace(e.size), unix.EPOLLOUT},
	} {
		if c.on {
			events |= c.bit
		}
	}
	return events
}

// some returns n, or sometimes less.
func (e *loopEnd) some(n int) int {
	if n > 1 && e.rng.IntN(4) == 0 {
		return 1 + e.rng.IntN(n)
	}
	return n
}

// Recv implements rounds.Stream.
func (e *loopEnd) Recv(a, b []byte) (n int, errno syscall.Errno) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	size := len(a) + len(b)
	if len(e.up.buf) > 0 {
		size = e.some(min(size, len(e.up.buf)))
	}
	n, errno = e.up.read(a[:min(len(a), size)])
	if more := size - n; n == len(a) && more > 0 && len(e.up.buf) > 0 && !e.up.atMark() {
		m, _ := e.up.read(b[:more])
		n += m
	}
	if len(e.up.buf) > 0 {
		// The rest arrives a moment later, with an event of its own.
		e.watch.raise()
	}
	e.changed = e.changed || n > 0
	return n, errno
}

// Send implements rounds.Stream.
func (e *loopEnd) Send(a, b []byte) (n int, errno syscall.Errno) { return e.send(a, b, false) }

func (e *loopEnd) send(a, b []byte, urgent bool) (n int, errno syscall.Errno) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	all := slices.Concat(a, b)
	if !urgent {
		all = all[:e.some(len(all))]
	}
	n, errno = e.down.write(all, e.size, urgent)
	e.changed = e.changed || n > 0
	return n, errno
}

// Pending implements rounds.Stream.
func (e *loopEnd) Pending() (readable, mark, plain bool) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	const data = unix.EPOLLIN
	return e.up.readable(), e.up.atMark(), e.events()&^unix.EPOLLOUT == data
}

// Peek implements rounds.Stream.
func (e *loopEnd) Peek() (n int, errno syscall.Errno) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	switch u := &e.up; {
	case len(u.buf) > 0:
		return 1, 0
	case u.err != 0:
		return 0, u.err
	case u.fin:
		return 0, 0
	}
	return 0, syscall.EAGAIN
}

// HungUp implements rounds.Stream.
func (e *loopEnd) HungUp() (up, failed bool) {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	const hup, err = unix.EPOLLHUP, unix.EPOLLERR
	events := e.events()
	return events&(hup|err) != 0, events&err != 0
}

// CloseWrite implements rounds.Stream.
func (e *loopEnd) CloseWrite() error {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	e.down.fin, e.changed = true, true
	return nil
}

// Close implements rounds.Stream.
func (e *loopEnd) Close() error {
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	e.up.close(&e.down)
	e.changed = true
	e.w.count.Sockets--
	return nil
}

// Program is the program's end of a [Loop.Pair]. Its methods never block. They return the
// errors of the system calls, and io.EOF.
type Program struct{ p *socketpair }

// SendUrgent is send with MSG_OOB at the loop's end: it writes as much of b as there is
// room for. The last byte of b is urgent.
func (p *Program) SendUrgent(b []byte) (n int, errno syscall.Errno) {
	return (*loopEnd)(p.p).send(b, nil, true)
}

// Unread returns how many bytes the loop's end can read.
func (p *Program) Unread() int {
	p.p.w.mu.Lock()
	defer p.p.w.mu.Unlock()
	return len(p.p.up.buf)
}

// Reset resets the connection at the loop's end.
func (p *Program) Reset() {
	p.p.w.mu.Lock()
	defer p.p.w.mu.Unlock()
	u, d := &p.p.up, &p.p.down
	if !d.fin {
		d.err = syscall.ECONNRESET
	}
	u.buf, u.fin, d.fin, p.p.changed = nil, true, true, true
}

// Woken reports whether something has changed since the last call.
func (p *Program) Woken() (woken bool) {
	p.p.w.mu.Lock()
	defer p.p.w.mu.Unlock()
	woken, p.p.changed = p.p.changed, false
	return woken
}

// Readable returns how many bytes can be read, or the error or end of the stream that
// follows them.
func (p *Program) Readable() (n int, err error) {
	p.p.w.mu.Lock()
	defer p.p.w.mu.Unlock()
	switch d := &p.p.down; {
	case d.closed:
		return 0, syscall.EBADF
	case len(d.buf) > 0:
		return len(d.buf), nil
	case d.err != 0:
		return 0, d.err
	case d.fin:
		return 0, io.EOF
	}
	return 0, nil
}

// Writable returns how many bytes can be written, or the error of a write.
func (p *Program) Writable() (n int, err error) {
	p.p.w.mu.Lock()
	defer p.p.w.mu.Unlock()
	if p.p.up.fin || p.p.up.closed {
		return 0, syscall.EPIPE
	}
	return p.p.size - len(p.p.up.buf), nil
}

// Read reads all bytes up to len(b), also urgent ones.
func (p *Program) Read(b []byte) (total int, err error) {
	p.p.w.mu.Lock()
	defer p.p.w.mu.Unlock()
	d := &p.p.down
	for total < len(b) && len(d.buf) > 0 {
		n, _ := d.read(b[total:])
		total += n
	}
	if total > 0 {
		if d.hasSpace(p.p.size) && p.p.asked&unix.EPOLLOUT != 0 {
			p.p.watch.raise()
		}
		return total, nil
	}
	switch _, errno := d.read(b); errno {
	case 0:
		return 0, io.EOF
	default:
		return 0, errno
	}
}

// Write writes as many bytes of b as there is room for.
func (p *Program) Write(b []byte) (int, error) { return p.write(b, false) }

// WriteUrgent is Write with the last byte of b urgent.
func (p *Program) WriteUrgent(b []byte) (int, error) { return p.write(b, true) }

func (p *Program) write(b []byte, urgent bool) (int, error) {
	p.p.w.mu.Lock()
	defer p.p.w.mu.Unlock()
	n, errno := p.p.up.write(b, p.p.size, urgent)
	if errno != 0 {
		return 0, errno
	}
	p.p.watch.raise()
	return n, nil
}

// CloseWrite shuts down writing.
func (p *Program) CloseWrite() error {
	p.p.w.mu.Lock()
	defer p.p.w.mu.Unlock()
	p.p.up.fin = true
	p.p.watch.raise()
	return nil
}

// Close closes the program's end. Calls after the first do nothing.
func (p *Program) Close() error {
	p.p.w.mu.Lock()
	defer p.p.w.mu.Unlock()
	if !p.p.down.closed {
		p.p.down.close(&p.p.up)
		p.p.watch.raise()
	}
	return nil
}

// Open reports whether one of the streams has not ended.
func (p *Program) Open() bool {
	p.p.w.mu.Lock()
	defer p.p.w.mu.Unlock()
	return !p.p.up.fin || !p.p.down.fin
}

// Abort closes the program's end with SO_LINGER 0: unless both streams have ended, this resets
// the connection.
func (p *Program) Abort() error {
	p.p.w.mu.Lock()
	defer p.p.w.mu.Unlock()
	if u, d := &p.p.up, &p.p.down; !d.closed {
		switch {
		case !u.fin:
			u.err = syscall.ECONNRESET
		case !d.fin:
			u.behind, d.buf = true, nil
		}
		d.close(u)
		p.p.watch.raise()
	}
	return nil
}
