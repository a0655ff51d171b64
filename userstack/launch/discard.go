// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"encoding/binary"
	"errors"
	"math"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Two flags of recv() and recvmsg() mean something on a TCP socket, and nothing on
// a unix stream socket, which returns data in spite of them.
//
//	flag         | TCP                      | the launcher
//	MSG_TRUNC    | discards bytes, also     | reads them from the program's end
//	             | without a buffer         |
//	MSG_ERRQUEUE | reads the error queue    | the queue is always empty

const (
	sizeofMsghdr = int(unsafe.Sizeof(unix.Msghdr{}))
	sizeofIovec  = int(unsafe.Sizeof(unix.Iovec{}))
	maxIovecs    = 1024 // UIO_MAXIOV
	discardPiece = 64 << 10
	// peekTick is the interval at which a call with MSG_PEEK looks for more data.
	peekTick = 2 * time.Millisecond
	// maxDiscard is how many bytes the kernel transfers in one call at most.
	maxDiscard = math.MaxInt32 &^ 4095
)

// answerReceive answers recvfrom() and recvmsg() with MSG_TRUNC or MSG_ERRQUEUE on
// the program's end of a connection.
func answerReceive(n *notif, c *conn) {
	s := c.s
	c.mu.Lock()
	swapped, inode := c.swapped, uint64(0)
	if swapped {
		inode = c.pair.inode
	}
	c.mu.Unlock()
	d := &discarding{s: s, n: n, flags: int(n.Args[3])}
	if n.Nr == unix.SYS_RECVMSG {
		d.flags = int(n.Args[2])
	}
	if !swapped || d.flags&unix.MSG_OOB != 0 && d.flags&unix.MSG_ERRQUEUE == 0 {
		s.cont(n)
		return
	}
	switch err := d.size(); {
	case err != nil:
		s.fail(n, errnoOf(err))
		return
	case d.flags&unix.MSG_ERRQUEUE != 0:
		s.fail(n, unix.EAGAIN)
		return
	case d.want == 0:
		s.cont(n) // as the kernel does it
		return
	}
	if !s.endCopies.take() {
		s.fail(n, unix.ENOBUFS)
		return
	}
	defer s.endCopies.give()
	var err error
	if d.fd, err = s.looks.socket(n, n.tid(), n.fdArg(), inode, 0); err != nil {
		s.cont(n) // the descriptor is another socket by now
		return
	}
	defer unix.Close(d.fd)
	got, err := d.run()
	if err != nil {
		s.fail(n, errnoOf(err))
		return
	}
	if err := d.writeResults(); err != nil {
		s.fail(n, errnoOf(err))
		return
	}
	s.reply(n, got)
}

// discarding is one call with MSG_TRUNC.
type discarding struct {
	s     *supervisor
	n     *notif
	flags int
	want  int // the number of bytes that the program asks for
	fd    int // a duplicate of the program's end

	name     bool // recvmsg() asks for an address
	nonblock bool
	target   int       // it waits for that many bytes
	deadline time.Time // zero: none
}

// size finds out how many bytes the program asks for.
func (d *discarding) size() error {
	if d.n.Nr == unix.SYS_RECVFROM {
		d.want = int(min(d.n.Args[2], maxDiscard))
		return nil
	}
	b, err := d.n.read(d.n.Args[1], sizeofMsghdr, 0)
	if err != nil {
		return unix.EFAULT
	}
	word := func(at uintptr) uint64 { return binary.NativeEndian.Uint64(b[at:]) }
	d.name = word(unsafe.Offsetof(unix.Msghdr{}.Name)) != 0
	count := word(unsafe.Offsetof(unix.Msghdr{}.Iovlen))
	if count > maxIovecs {
		return unix.EMSGSIZE
	}
	v, err := d.n.read(word(unsafe.Offsetof(unix.Msghdr{}.Iov)), int(count)*sizeofIovec, 0)
	if err != nil {
		return unix.EFAULT
	}
	for ; len(v) > 0; v = v[sizeofIovec:] {
		size := binary.NativeEndian.Uint64(v[unsafe.Offsetof(unix.Iovec{}.Len):])
		if size > math.MaxInt64 {
			return unix.EINVAL
		}
		d.want += int(min(size, uint64(maxDiscard-d.want)))
	}
	return nil
}

// run discards what there is and waits for it if necessary.
func (d *discarding) run() (got int, err error) {
	if err := d.try(d.settings); err != nil {
		return 0, err
	}
	for {
		var done bool
		if err = d.try(func() (err error) {
			var m int
			m, done, err = d.once(got)
			got += m
			return err
		}); err != nil && !errors.Is(err, unix.EAGAIN) {
			break
		}
		if done || got >= d.target || d.nonblock || !d.await() {
			break
		}
		if got > 0 && d.flags&unix.MSG_PEEK != 0 {
			time.Sleep(peekTick) // what was counted stays, and is reported again
		}
	}
	if got > 0 {
		return got, nil
	}
	return 0, err
}

// try calls f as a look, because another call of the program may hold the lock of
// the socket.
func (d *discarding) try(f func() error) error { return d.s.looks.try(d.n, d.n.tid(), 0, f) }

// settings reads those of the socket. It is part of a look.
func (d *discarding) settings() error {
	fl, err := unix.FcntlInt(uintptr(d.fd), unix.F_GETFL, 0)
	if err != nil {
		return err
	}
	d.nonblock = d.flags&unix.MSG_DONTWAIT != 0 || fl&unix.O_NONBLOCK != 0
	if tv, err := unix.GetsockoptTimeval(d.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO); err == nil && tv.Nano() > 0 {
		d.deadline = time.Now().Add(time.Duration(tv.Nano()))
	}
	d.target = d.want
	if d.flags&unix.MSG_WAITALL == 0 {
		low, err := unix.GetsockoptInt(d.fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT)
		if err != nil {
			return err
		}
		d.target = max(min(low, d.want), 1)
	}
	return nil
}

// once discards what there is, got bytes of the call having gone before. It returns
// done if the call must not wait for more. It is part of a look.
func (d *discarding) once(got int) (n int, done bool, err error) {
	if d.flags&unix.MSG_PEEK != 0 {
		return d.peek(got)
	}
	var buf [discardPiece]byte
	for got+n < d.want {
		if !d.n.valid() { // the kernel repeats the call, or a signal ended it
			return n, true, unix.EINTR
		}
		piece := buf[:min(d.want-got-n, len(buf))]
		m, _, err := unix.Recvfrom(d.fd, piece, unix.MSG_DONTWAIT)
		if err != nil {
			return n, n > 0 && !errors.Is(err, unix.EAGAIN), err
		}
		n += m
		if m == 0 || m < len(piece) && d.atMark() {
			return n, true, nil // the end of the stream, or an urgent byte
		}
	}
	return n, true, nil
}

// atMark reports whether the next byte is urgent.
func (d *discarding) atMark() bool {
	at, err := unix.IoctlGetInt(d.fd, unix.SIOCATMARK)
	return err == nil && at != 0
}

// peek only counts. got is what it counted before.
func (d *discarding) peek(got int) (n int, done bool, err error) {
	var b [1]byte
	if m, _, err := unix.Recvfrom(d.fd, b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT); err != nil || m == 0 {
		return 0, err == nil, err
	}
	have, err := unix.IoctlGetInt(d.fd, unix.SIOCINQ)
	if err != nil {
		return 0, true, err
	}
	p := []unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLRDHUP}}
	_, err = unix.Poll(p, 0)
	return min(have, d.want) - got, p[0].Revents != 0, err
}

// await waits until there may be more data. It returns false if the call must not
// wait any more.
func (d *discarding) await() bool {
	ready := make(chan struct{}, 1)
	sub, err := d.s.poll.watch(d.fd, unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLONESHOT, func(uint32) { ready <- struct{}{} })
	if err != nil {
		return false
	}
	defer sub.stop()
	var late <-chan time.Time
	if !d.deadline.IsZero() {
		t := time.NewTimer(time.Until(d.deadline))
		defer t.Stop()
		late = t.C
	}
	tick := time.NewTicker(validTick)
	defer tick.Stop()
	for {
		select {
		case <-ready:
			return true
		case <-late:
			return false
		case <-d.s.ctx.Done():
			return false
		case <-tick.C:
			if !d.n.valid() {
				return false
			}
		}
	}
}

// writeResults stores what a call returns besides the number of bytes: TCP gives no
// address and no control messages.
func (d *discarding) writeResults() error {
	n := d.n
	var zero [8]byte
	if n.Nr == unix.SYS_RECVFROM {
		if n.Args[4] == 0 {
			return nil
		}
		return n.writeSockaddr(n.Args[4], n.Args[5], nil, false)
	}
	at := func(offset uintptr) uint64 { return n.Args[1] + uint64(offset) }
	if d.name {
		if err := n.write(at(unsafe.Offsetof(unix.Msghdr{}.Namelen)), zero[:4]); err != nil {
			return err
		}
	}
	flags := binary.NativeEndian.AppendUint32(nil, uint32(d.flags&unix.MSG_CMSG_CLOEXEC))
	if err := n.write(at(unsafe.Offsetof(unix.Msghdr{}.Flags)), flags); err != nil {
		return err
	}
	return n.write(at(unsafe.Offsetof(unix.Msghdr{}.Controllen)), zero[:])
}
