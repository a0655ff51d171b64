// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/guard"
	"smcr/internal/retry"
	"smcr/userstack/internal/inside"
	"smcr/userstack/rendezvous"
	"smcr/userstack/wire"
)

// The TCP connection as a source of events for the rendezvous. Where Linux has no event, this
// file polls. No other file of the package does.

// longAgo is a deadline that ends reads and writes that wait.
var longAgo = time.Unix(1, 0)

// tcpReader reads from a TCP connection, one message for each request: if an engine watches the connection, when that reports an
// event, otherwise in a goroutine of its own. If a connection falls back, its data follow the messages on TCP. So it reads
// exactly the bytes of a message.
type tcpReader struct {
	tcp     TCPConn
	guard   *guard.Guard
	buf     *clcBuffer       // nil before begin, and after close
	have    int              // bytes of the message that is being read
	ask     chan readRequest // for the goroutine; nil without
	got     chan readResult
	pending bool   // a request is without a result
	took    int    // bytes read from tcp in all
	ready   func() // called when an event has given the request a result; nil if somebody waits at got

	of   inside.Notifier // nil: no engine watches tcp
	rc   syscall.RawConn // of tcp, with of
	mu   sync.Mutex      // guards what follows, and buf and have, with of
	now  readRequest
	from int    // where now began in buf
	want bool   // now has no result
	some bool   // there may be something to read
	read uint64 // the first events, of which nothing is left to read
	last glance // the latest one, if nothing was read since
	call receiving
}

// glance is what there was to be read when somebody looked: the bytes of buf up to an index. events are those before that, and plain
// says whether these were of data only.
type glance struct {
	to     int
	events uint64
	plain  bool
}

// receiving is a call of recvfrom(2). It is part of the reader, so that none allocates memory.
type receiving struct {
	f     func(fd uintptr)
	b     []byte
	flags int
	n     int
	err   error
}

// clcBuffer takes a message. One more byte tells whether something follows.
type clcBuffer [wire.MaxCLCLen + 1]byte

// clcBuffers has those of readers that have ended: they are the largest part of what a rendezvous allocates.
var clcBuffers = sync.Pool{New: func() any { return new(clcBuffer) }}

// readRequest requests a message. If look is set, it requests more than seen of the first
// bytes, which stay unread. If now is set, it requests what has arrived of the message.
type readRequest struct {
	look bool
	seen int
	now  bool
}

type readResult struct {
	b    []byte // valid until the next request
	look bool
	err  error
}

// request begins to read. No request may be pending.
func (r *tcpReader) request(q readRequest) {
	if r.got == nil {
		r.begin()
	}
	r.pending = true
	if r.of == nil {
		r.ask <- q
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if rendezvous.Rest(r.buf[:r.have]) == 0 {
		r.have = 0
	}
	r.now, r.from, r.want = q, r.have, true
	r.step()
}

// begin finds out who reads.
func (r *tcpReader) begin() {
	r.got, r.buf = make(chan readResult, 1), clcBuffers.Get().(*clcBuffer)
	if of := inside.NotifierOf(r.tcp); of != nil {
		if c, ok := r.tcp.(syscall.Conn); ok {
			if rc, err := c.SyscallConn(); err == nil {
				r.of, r.rc = of, rc
				of.Notify(r.event, 0)
				return
			}
		}
	}
	r.ask = make(chan readRequest)
	go r.serve(r.ask) // No guard: each request has one.
}

// event is called by the engine.
func (r *tcpReader) event() {
	r.mu.Lock()
	r.some = true
	done := r.step()
	r.mu.Unlock()
	if done && r.ready != nil {
		r.ready()
	}
}

// step goes on with the request that has no result, and reports whether it has one now. mu is held.
func (r *tcpReader) step() bool {
	if !r.want || !r.some && !r.now.now {
		return false
	}
	var res readResult
	done := true
	if err := r.guard.Do("reading a CLC message", func() { res, done = r.try() }); err != nil {
		res.err = err
	}
	if done {
		r.want = false
		r.got <- res
	}
	return done
}

// try reads what there is. It returns false if the request has to wait for an event. mu is held.
func (r *tcpReader) try() (res readResult, done bool) {
	q := r.now
	if q.look {
		g, err := r.glance()
		n := g.to - r.have
		if err == unix.EAGAIN || err == nil && n > 0 && n <= q.seen {
			r.some = false // more bytes are an event, too
			return res, false
		}
		r.last = g // PROPOSAL is mostly whole: it is read next
		return readResult{look: true, b: r.buf[r.have:][:min(n, wire.HeaderLen)], err: endOf(n, err)}, true
	}
	for rendezvous.Rest(r.buf[:r.have]) > 0 {
		g, err := r.last, error(nil)
		r.last = glance{}
		if g.to <= r.have {
			g, err = r.glance()
		} else if events, _ := r.of.Events(); events != g.events {
			g.plain = false // there may be more by now
		}
		n := g.to - r.have
		if err == nil && n > 0 {
			n, err = r.receive(r.buf[r.have:r.ends(g.to)], 0)
			if r.have += n; err == nil && r.have == g.to && g.plain {
				// What comes later is an event.
				r.some, r.read = false, g.events
				break
			}
			if err == nil && n > 0 {
				continue
			}
		}
		if err == unix.EAGAIN {
			r.some, r.read = false, g.events
			break
		}
		if err = endOf(n, err); q.now {
			err = nil // it shows at the next read
		}
		return readResult{b: r.buf[r.from:r.have], err: err}, true
	}
	return readResult{b: r.buf[r.from:r.have]}, q.now || rendezvous.Rest(r.buf[:r.have]) == 0
}

// ends returns where the message ends that begins buf, or there, if not all of it is in buf before that.
func (r *tcpReader) ends(there int) (end int) {
	end = r.have
	for more := 1; more > 0 && end < there; end = min(end+more, there) {
		more = rendezvous.Rest(r.buf[:end])
	}
	return end
}

// glance looks at what there is to be read, which stays unread. mu is held.
func (r *tcpReader) glance() (g glance, err error) {
	g.events, g.plain = r.of.Events()
	n, err := r.receive(r.buf[r.have:], unix.MSG_PEEK)
	g.to = r.have + n
	return g, err
}

// receive receives bytes, without waiting. The error is net.ErrClosed or a syscall.Errno. b is not empty. mu is held.
func (r *tcpReader) receive(b []byte, flags int) (n int, err error) {
	c := &r.call
	if c.f == nil {
		c.f = c.do
	}
	c.b, c.flags = b, flags
	if r.rc.Control(c.f) != nil {
		return 0, net.ErrClosed
	}
	return c.n, c.err
}

// do makes the call. It cannot wait, so Go's scheduler need not know of it.
func (c *receiving) do(fd uintptr) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(c.b))), uintptr(len(c.b)), uintptr(c.flags|unix.MSG_DONTWAIT), 0, 0)
		switch errno {
		case 0:
			c.n, c.err = int(n), nil
		case unix.EINTR:
			continue
		default:
			c.n, c.err = 0, errno
		}
		return
	}
}

// endOf returns the error of a read.
func endOf(n int, err error) error {
	switch errno, ok := err.(syscall.Errno); {
	case ok:
		return os.NewSyscallError("recvfrom", errno)
	case err == nil && n == 0:
		return io.EOF
	}
	return err
}

func (r *tcpReader) serve(ask <-chan readRequest) {
	for q := range ask {
		res := readResult{look: q.look}
		if err := r.guard.Do("reading a CLC message", func() {
			if q.look {
				n, err := peekMore(r.tcp, r.buf[:wire.HeaderLen], q.seen)
				res.b, res.err = r.buf[:n], err
				return
			}
			if rendezvous.Rest(r.buf[:r.have]) == 0 {
				r.have = 0
			}
			from := r.have
			for more := rendezvous.Rest(r.buf[:r.have]); more > 0 && res.err == nil; more = rendezvous.Rest(r.buf[:r.have]) {
				var n int
				if q.now {
					if n = readNow(r.tcp, r.buf[r.have:r.have+more]); n == 0 {
						break
					}
				} else {
					n, res.err = r.tcp.Read(r.buf[r.have : r.have+more])
				}
				r.have += max(n, 0)
			}
			res.b = r.buf[from:r.have]
		}); err != nil {
			res.err = err
		}
		r.got <- res
	}
}

// finish takes the result of the request.
func (r *tcpReader) finish(res readResult) readResult {
	r.pending = false
	if !res.look {
		r.took += len(res.b)
	}
	return res
}

// stop ends the pending request, if there is one, and returns what was read.
func (r *tcpReader) stop() []byte {
	if !r.pending {
		return nil
	}
	if r.of != nil {
		r.mu.Lock()
		if r.want {
			r.want = false
			r.got <- readResult{look: r.now.look, b: r.buf[r.from:r.have], err: os.ErrDeadlineExceeded}
		}
		r.mu.Unlock()
		if res := r.finish(<-r.got); !res.look {
			return res.b
		}
		return nil
	}
	_ = r.tcp.SetReadDeadline(longAgo)
	res := r.finish(<-r.got)
	_ = r.tcp.SetReadDeadline(time.Time{})
	if res.look {
		return nil
	}
	return res.b
}

// rest returns what has arrived of the message that is being read. stop comes before it: a read that
// waits, and whose deadline passes, does not look once more. If this process has stood still, much may
// have arrived.
func (r *tcpReader) rest() []byte {
	r.request(readRequest{now: true})
	return r.finish(<-r.got).b
}

// close ends the goroutine.
func (r *tcpReader) close() {
	r.stop()
	if r.of != nil {
		r.mu.Lock()
		read := r.read
		r.mu.Unlock()
		r.of.Notify(nil, read)
		r.of, r.got = nil, nil
		clcBuffers.Put(r.buf) // nobody reads any more: an event that comes late finds no request
		r.buf = nil
	}
	if r.ask != nil {
		close(r.ask)
		r.ask = nil
	}
}

// tcpProber reports whether the peer's TCP has data to acknowledge, and which bytes can be
// read. It leaves these unread. It looks at no more bytes than a CLC header has.
type tcpProber interface {
	Probe() (unacked bool, first []byte)
}

// probeTCP is Probe for any TCP connection. If a connection cannot tell, everything is taken
// as acknowledged.
func probeTCP(tcp TCPConn) (unacked bool, first []byte) {
	switch c := tcp.(type) {
	case tcpProber:
		return c.Probe()
	case syscall.Conn:
		return probeSocket(c)
	}
	return false, nil
}

// probeSocket is Probe for a TCP connection of the kernel. A socket that returns no answer
// has ended. The next use of it returns the error.
func probeSocket(tcp syscall.Conn) (unacked bool, first []byte) {
	rc, err := tcp.SyscallConn()
	if err != nil {
		return false, nil
	}
	var b [wire.HeaderLen]byte
	_ = rc.Control(func(fd uintptr) {
		// In the other order, a message could arrive in between.
		left, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		unacked = err == nil && left > 0
		if n := receiveArrived(int(fd), b[:], unix.MSG_PEEK); n > 0 {
			first = b[:n]
		}
	})
	return unacked, first
}

// readNow reads bytes that have arrived. It does not wait, and returns 0 if there are none.
func readNow(tcp TCPConn, b []byte) (n int) {
	switch c := tcp.(type) {
	case interface{ ReadNow(b []byte) int }:
		return c.ReadNow(b)
	case syscall.Conn:
		rc, err := c.SyscallConn()
		if err != nil {
			return 0
		}
		_ = rc.Control(func(fd uintptr) { n = receiveArrived(int(fd), b, 0) })
	}
	return n
}

// receiveArrived receives bytes that have arrived, with further flags. It returns 0 if there are
// none: a call without bytes would take the error of a reset from the next use of the socket.
func receiveArrived(fd int, b []byte, flags int) int {
	if have, err := unix.IoctlGetInt(fd, unix.SIOCINQ); err != nil || have == 0 {
		return 0
	}
	n, _, _ := unix.Recvfrom(fd, b, flags|unix.MSG_DONTWAIT)
	return max(n, 0)
}

// peekEvery is the interval between two looks at the first bytes while they are a part of a
// CLC header. Bytes that have arrived cause no further event.
const peekEvery = time.Millisecond

// peekMore copies the first bytes that can be read to b when there are more than seen, and
// leaves them unread. The read deadline of tcp ends it.
func peekMore(tcp TCPConn, b []byte, seen int) (int, error) {
	sc, ok := tcp.(syscall.Conn)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return 0, err
	}
	for {
		n := 0
		var perr error
		if err := rc.Read(func(fd uintptr) bool {
			perr = retry.Interrupted(func() (err error) {
				n, _, err = unix.Recvfrom(int(fd), b, unix.MSG_PEEK|unix.MSG_DONTWAIT)
				return err
			})
			return perr != unix.EAGAIN
		}); err != nil {
			return 0, err
		}
		switch {
		case perr != nil:
			return 0, os.NewSyscallError("recvfrom", perr)
		case n == 0:
			return 0, io.EOF
		case n > seen:
			return n, nil
		}
		time.Sleep(peekEvery)
	}
}
