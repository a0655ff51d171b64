// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/internal/atonce"
	"smcr/internal/retry"
)

// Splice carries the bytes of a program over outer: the peer has declined SMC, or this end has. It returns when both streams have
// ended, one of the programs has reset the connection, or the stack has nothing more of it because its packets pass (shift.go).
func (f *Flow) Splice() error {
	f.mu.Lock()
	f.spliced = true
	f.mu.Unlock()
	_, giveBack, err := f.Split()
	if err != nil {
		return err
	}
	giveBack()
	inner, err := f.program().tcp()
	if err != nil {
		f.Reset()
		return err
	}
	outer, err := f.Outer()
	if err != nil {
		f.Reset()
		return err
	}
	f.outer.control(func(fd int) {
		_ = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, f.d.congestion)
		_ = atonce.SetInt(fd, unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1)
	})
	var p pipes
	done := make(chan struct{})
	var sides sync.WaitGroup
	var failed [2]error
	for i, side := range []struct {
		mu       *sync.Mutex
		into     *stream
		to, from *net.TCPConn
	}{{&p.up, f.outer, outer, inner}, {&p.down, f.program(), inner, outer}} {
		failed[i] = io.ErrUnexpectedEOF // of a panic
		sides.Go(f.d.cfg.Guard.Func("a spliced connection", func() { failed[i] = f.splice(side.mu, side.into, side.to, side.from) }))
	}
	go func() {
		sides.Wait()
		close(done)
	}()
	if f.shift(done, &p) {
		f.d.leave(f)
		<-done
		return nil
	}
	if errors.Join(failed[:]...) == nil {
		f.Finish(false)
	}
	return nil
}

// pipes are the two directions of a spliced connection. A mutex is locked while the stack has bytes of its direction in its hands.
type pipes struct{ up, down sync.Mutex }

// stop keeps both directions from going on, if no bytes are under way in them.
func (p *pipes) stop() bool {
	if !p.up.TryLock() {
		return false
	}
	if !p.down.TryLock() {
		p.up.Unlock()
		return false
	}
	return true
}

func (p *pipes) goOn() {
	p.down.Unlock()
	p.up.Unlock()
}

// splice carries one direction. The end of the stream is the end of the other one, an error resets both, behind what was
// carried.
func (f *Flow) splice(mu *sync.Mutex, into *stream, to, from *net.TCPConn) error {
	err := carry(mu, to, from)
	if err == nil {
		err = to.CloseWrite()
	}
	if err != nil {
		into.drain()
		f.Reset()
	}
	return err
}

// spliceBuffer is how many bytes of one direction are read at a time.
const spliceBuffer = 32 << 10

// carry carries bytes until the stream ends, and urgent ones as such. It is no io.Copy: that uses splice(2),
// which stops at an urgent byte, and never goes on.
func carry(mu *sync.Mutex, to, from *net.TCPConn) error {
	src, err := from.SyscallConn()
	if err != nil {
		return err
	}
	dst, err := to.SyscallConn()
	if err != nil {
		return err
	}
	// An urgent byte is read in its place.
	var set error
	err = src.Control(func(fd uintptr) { set = atonce.SetInt(int(fd), unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) })
	if err := errors.Join(err, set); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	buf := make([]byte, spliceBuffer)
	for {
		n, urgent, err := readMarked(mu, src, buf)
		if err != nil || n == 0 {
			return err
		}
		if urgent {
			err = writeUrgent(dst, buf[:n])
		} else {
			_, err = to.Write(buf[:n])
		}
		mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// readMarked reads bytes of a connection, no more than the ones before an urgent byte, or that byte. 0 is the end of the
// stream. With any other number, mu is locked.
func readMarked(mu *sync.Mutex, c syscall.RawConn, buf []byte) (n int, urgent bool, err error) {
	var failed error
	err = c.Read(func(fd uintptr) bool {
		mu.Lock()
		b := buf
		mark, merr := unix.IoctlGetInt(int(fd), unix.SIOCATMARK)
		if urgent = merr == nil && mark == 1; urgent {
			b = b[:1]
		}
		failed = retry.Interrupted(func() (err error) { n, err = unix.Read(int(fd), b); return err })
		if n <= 0 {
			mu.Unlock()
		}
		return failed != unix.EAGAIN
	})
	if err == nil && failed != nil {
		err = os.NewSyscallError("read", failed)
	}
	return n, urgent, err
}

// writeUrgent writes an urgent byte.
func writeUrgent(c syscall.RawConn, b []byte) error {
	var failed error
	err := c.Write(func(fd uintptr) bool {
		failed = retry.Interrupted(func() error {
			_, err := unix.SendmsgN(int(fd), b, nil, nil, unix.MSG_OOB|unix.MSG_NOSIGNAL)
			return err
		})
		return failed != unix.EAGAIN
	})
	if err == nil && failed != nil {
		err = os.NewSyscallError("sendmsg", failed)
	}
	return err
}
