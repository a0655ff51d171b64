// SPDX-License-Identifier: Apache-2.0

package reflector

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// An end is one of the two connections of a link, and what was read of it.
type end struct {
	fd     int
	ways   ways // of the link
	peer   *end
	buf    []byte // not yet written to peer
	urgent int    // an urgent byte behind buf, or none
	eof    bool   // its stream has ended
	told   bool   // and peer knows
	events uint32 // that are watched
}

const none = -1

// turns bounds what one connection moves before others have their turn.
const turns = 16

// join has the bytes of two connections carried until both streams have ended.
func (r *reflector) join(w ways, a, b int) {
	r.live[w] = true
	x, y := &end{fd: a, ways: w, urgent: none}, &end{fd: b, ways: w, urgent: none}
	x.peer, y.peer = y, x
	for _, e := range []*end{x, y} {
		_ = unix.SetsockoptInt(e.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		_ = unix.SetsockoptInt(e.fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) // an urgent byte is read in its place
		if err := r.watch(e.fd, 0, func(events uint32) { r.event(e, events) }); err != nil {
			r.log.Warn("a connection is lost", "err", err)
			r.reset(x)
			return
		}
	}
	r.event(x, 0)
}

// event moves what can be moved. A connection that is broken breaks the other one, behind what came before.
func (r *reflector) event(e *end, events uint32) {
	err := errors.Join(r.move(e), r.move(e.peer))
	switch {
	case err != nil || events&unix.EPOLLERR != 0:
		r.reset(e)
	case e.told && e.peer.told:
		delete(r.live, e.ways)
		for _, e := range []*end{e, e.peer} {
			r.forget(e.fd)
			_ = unix.Close(e.fd)
		}
	default:
		r.rewatch(e)
		r.rewatch(e.peer)
	}
}

// rewatch watches an end for what it waits for.
func (r *reflector) rewatch(e *end) {
	var events uint32
	if e.peer.waits() {
		events |= unix.EPOLLOUT
	}
	if !e.eof && !e.waits() {
		events |= unix.EPOLLIN
	}
	if e.eof && e.peer.told {
		// It has nothing more to say but that.
		r.forget(e.fd)
		return
	}
	if events != e.events {
		e.events = events
		r.change(e.fd, events)
	}
}

// waits reports whether there are bytes that the peer does not take.
func (e *end) waits() bool { return len(e.buf) > 0 || e.urgent != none }

// move moves bytes from an end to its peer while both can, and tells the peer of the end of the stream.
func (r *reflector) move(e *end) error {
	if err := r.carry(e); err != nil || !e.eof || e.waits() || e.told {
		return err
	}
	e.told = true
	return unix.Shutdown(e.peer.fd, unix.SHUT_WR)
}

func (r *reflector) carry(e *end) error {
	for range turns {
		switch {
		case len(e.buf) > 0:
			n, err := unix.SendmsgN(e.peer.fd, e.buf, nil, nil, unix.MSG_NOSIGNAL)
			if err != nil {
				return later(err)
			}
			e.buf = e.buf[n:]
			continue
		case e.urgent != none:
			if _, err := unix.SendmsgN(e.peer.fd, []byte{byte(e.urgent)}, nil, nil, unix.MSG_NOSIGNAL|unix.MSG_OOB); err != nil {
				return later(err)
			}
			e.urgent = none
			continue
		case e.eof:
			return nil
		}
		// A read ends before an urgent byte.
		into := r.scratch
		mark, err := unix.IoctlGetInt(e.fd, unix.SIOCATMARK)
		urgent := err == nil && mark == 1
		if urgent {
			into = into[:1]
		}
		n, err := unix.Read(e.fd, into)
		if err != nil {
			return later(err)
		}
		if urgent && n == 1 {
			e.urgent = int(into[0])
			continue
		}
		if e.eof = n == 0; e.eof {
			continue
		}
		written, err := unix.SendmsgN(e.peer.fd, r.scratch[:n], nil, nil, unix.MSG_NOSIGNAL)
		if err := later(err); err != nil {
			return err
		}
		if written = max(written, 0); written < n {
			e.buf = append([]byte(nil), r.scratch[written:n]...)
			return nil
		}
	}
	return nil
}

// later returns nil for errors that pass.
func later(err error) error {
	if err == unix.EAGAIN || err == unix.EINTR {
		return nil
	}
	return err
}

// reset resets both connections of a link.
func (r *reflector) reset(e *end) {
	delete(r.live, e.ways)
	for _, e := range []*end{e, e.peer} {
		r.forget(e.fd)
		r.leave(e.fd)
	}
}

// leaveFor is how long a reset may wait for what was written before it.
const leaveFor = time.Second

// leave closes a connection with a reset as soon as what was written is sent. The kernel would drop what the congestion
// window has not let go, and the programs, which know of no second connection, have seen it go.
func (r *reflector) leave(fd int) {
	if sent(fd) {
		closeReset(fd)
		return
	}
	err := errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, 1), r.watch(fd, unix.EPOLLOUT, func(uint32) {
		if sent(fd) {
			r.forget(fd)
			closeReset(fd)
		}
	}))
	if err != nil {
		r.log.Warn("a reset overtakes what was sent", "err", err)
		closeReset(fd)
		return
	}
	r.leaving[fd] = time.Now().Add(leaveFor)
}

// sent reports whether the kernel has sent what was written, or cannot any more.
func sent(fd int) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err != nil || info.State == unix.BPF_TCP_CLOSE || info.Notsent_bytes == 0
}

// closeReset closes a connection with a reset.
func closeReset(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	_ = unix.Close(fd)
}
