// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/oob"
)

// lastWords is how long what a program wrote before it ended may take to leave,
// to a peer that is slow to read.
const lastWords = 10 * time.Second

// relay makes the launcher itself carry the bytes between the pair and the TCP
// socket: for a program that was given the pair before it was known that its
// peer has no SMC, and cannot be given its TCP socket back.
func (a *attempt) relay() bool {
	a.carryHere()
	a.succeed()
	return true
}

func (a *attempt) carryHere() {
	a.mu.Lock()
	a.here = true
	a.mu.Unlock()
}

// relayed runs the relay until both directions ended.
func (c *conn) relayed() {
	defer func() {
		c.mu.Lock()
		c.pair.closeEnd()
		_ = unix.Close(c.tcp)
		c.tcp = -1
		c.mu.Unlock()
		c.s.retire(c)
	}()
	inner, err := newStream(c.pair.end)
	if err != nil {
		c.s.log.Warn("cannot relay", "err", err)
		return
	}
	defer inner.Close()
	outer, err := newStream(c.tcp)
	if err != nil {
		c.s.log.Warn("cannot relay", "err", err)
		return
	}
	defer outer.Close()
	written := make(chan struct{})
	stop := context.AfterFunc(c.s.ctx, func() {
		if inner.hungUp() {
			select {
			case <-written:
			case <-c.s.hurry:
			case <-time.After(lastWords):
			}
		}
		_ = inner.Close()
		_ = outer.Close()
	})
	defer stop()
	carryBoth(inner, outer, c.passMark, func() { close(written) })
}

// carryBoth carries bytes between the program's end and the peer's until both
// directions are over: an end of file is passed on, an error ends both. It calls
// written when what the program wrote is out.
func carryBoth(inner, outer stream, passMark, written func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		defer written()
		if err := copyBytes(outer, inner, nil); err != nil {
			_ = outer.Close()
			_ = inner.Close()
			return
		}
		_ = outer.CloseWrite()
	})
	wg.Go(func() {
		err := copyBytes(inner, outer, passMark)
		if errors.Is(err, unix.EPIPE) && !inner.hungUp() {
			// The program has shut down reading, and may go on writing.
			err = discard(outer)
		}
		switch {
		case err == nil:
			_ = inner.CloseWrite()
		case errors.Is(err, unix.EPIPE):
			// The program has closed. What it wrote before is carried by the
			// other direction, which is over then.
		default:
			_ = inner.Close()
			_ = outer.Close()
		}
	})
	wg.Wait()
}

// passMark lets the program's end pass the urgent mark that it stands at.
func (c *conn) passMark() {
	app := c.program()
	if app < 0 {
		return
	}
	oob.PassMark(app)
	_ = unix.Close(app)
}

// stream is a stream socket in Go's poller. Unlike a net.Conn it changes no
// option of the socket but O_NONBLOCK.
type stream struct{ *os.File }

// CloseWrite sends the end of file.
func (s stream) CloseWrite() error {
	rc, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var e error
	if err := rc.Control(func(fd uintptr) { e = unix.Shutdown(int(fd), unix.SHUT_WR) }); err != nil {
		return err
	}
	return e
}

// hungUp reports whether the other end has been closed entirely.
func (s stream) hungUp() bool {
	rc, err := s.SyscallConn()
	if err != nil {
		return true
	}
	up := false
	err = rc.Control(func(fd uintptr) { up = pollHup(int(fd)) })
	return up || err != nil
}

// copyBytes copies until the end of file, urgent bytes as such. passMark is what
// to has to do before another urgent byte.
func copyBytes(to, from stream, passMark func()) error {
	dst, err := oob.New(to)
	if err != nil {
		return err
	}
	dst.PassMark = passMark
	src, err := oob.New(from)
	if err != nil {
		return err
	}
	return oob.Copy(dst, src)
}

// discard throws away what comes until the end of file.
func discard(from stream) error {
	src, err := oob.New(from)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, src)
	return err
}

// newStream wraps a duplicate of the stream socket fd.
func newStream(fd int) (stream, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return stream{}, os.NewSyscallError("fcntl", err)
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return stream{}, os.NewSyscallError("fcntl", err)
	}
	return stream{os.NewFile(uintptr(dup), "socket")}, nil
}
