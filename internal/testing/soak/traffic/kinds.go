// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// kinds are the kinds of traffic: what a worker does with one connection. The
// functions return nil when the stream is as it must be.
var kinds = map[string]func(u *use) error{
	"short":   (*use).short,
	"request": (*use).requests,
	"stream":  (*use).stream,
	"half":    (*use).halfClose,
	"urgent":  (*use).urgent,
	"idle":    (*use).idle,
	"udp":     (*use).datagrams,
}

// use is one connection of a worker.
type use struct {
	client *Client
	ctx    context.Context
	kind   string
	counts *counts
	stop   <-chan struct{}
	random stream // sizes and pauses

	conn     net.Conn
	began    time.Time
	out, in  stream // what is sent, and what must come back
	buf      []byte
	reported atomic.Bool
}

// run makes the connection, does the work and closes the connection. It reports an error.
func (u *use) run(work func(*use) error) error {
	if u.kind == "udp" {
		return work(u)
	}
	if err := u.open(); err != nil {
		return err
	}
	err := u.failed(work(u))
	u.close()
	return err
}

// open makes the connection and uses it once.
func (u *use) open() error {
	u.began = time.Now()
	u.counts.tried.Add(1)
	ctx, cancel := context.WithTimeout(u.ctx, u.client.ConnectTime)
	defer cancel()
	c, err := u.client.Dial(ctx, "tcp", u.client.Address)
	if err != nil {
		u.client.fail(u.kind, Refused, u.began, err)
		return err
	}
	s := u.client.seed()
	u.conn, u.out, u.in = c, stream{seed: s}, stream{seed: s}
	u.buf = make([]byte, 64<<10)
	u.counts.open.Add(1)
	if err := u.exchange(1 + u.below(2000)); err != nil {
		class := classOf(err)
		if class == Ended {
			class = Refused // it was never of use
		}
		u.client.fail(u.kind, class, u.began, err)
		u.close()
		return err
	}
	took := int64(time.Since(u.began))
	u.counts.connects.took(time.Duration(took))
	for old := u.counts.slowest.Load(); took > old && !u.counts.slowest.CompareAndSwap(old, took); old = u.counts.slowest.Load() {
	}
	u.counts.conns.Add(1)
	return nil
}

func (u *use) close() {
	_ = u.conn.Close()
	u.counts.open.Add(-1)
}

// failed reports an error of an open connection, and returns it.
func (u *use) failed(err error) error {
	if err != nil && !u.reported.Swap(true) {
		u.client.fail(u.kind, classOf(err), u.began, err)
	}
	return err
}

// below returns a number from 0 to n-1.
func (u *use) below(n int) int {
	u.random.at += 8
	return int(u.random.word(u.random.at/8) % uint64(n))
}

// pause returns how long to wait.
func (u *use) pause() time.Duration { return time.Duration(u.below(int(2*u.client.Pause) + 1)) }

// wait waits for a pause. It reports whether the work goes on.
func (u *use) wait(d time.Duration) bool {
	select {
	case <-u.stop:
		return false
	case <-time.After(d):
		return true
	}
}

// send sends the next n bytes.
func (u *use) send(n int) error {
	b := make([]byte, min(n, 32<<10))
	for n > 0 {
		b = b[:min(n, len(b))]
		u.out.fill(b)
		if err := u.conn.SetWriteDeadline(time.Now().Add(u.client.HungTime)); err != nil {
			return err
		}
		if _, err := u.conn.Write(b); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		n -= len(b)
	}
	return nil
}

// receive receives n bytes and checks them.
func (u *use) receive(n int) error {
	for n > 0 {
		if err := u.conn.SetReadDeadline(time.Now().Add(u.client.HungTime)); err != nil {
			return err
		}
		got, err := u.conn.Read(u.buf[:min(n, len(u.buf))])
		if err := u.in.check(u.buf[:got]); err != nil {
			return err
		}
		u.counts.bytes.Add(int64(got))
		n -= got
		if n > 0 && errors.Is(err, io.EOF) {
			// A program that has ended its stream under smcr run reads the end of file in
			// place of a reset, and finds the reset in SO_ERROR (docs/sockets.md).
			if err := socketError(u.conn); err != nil {
				return fmt.Errorf("end of file with SO_ERROR: %w", err)
			}
			return &lengthError{u.in.at, u.in.at + uint64(n)}
		}
		if n > 0 && err != nil {
			return fmt.Errorf("read: %w", err)
		}
	}
	return nil
}

// socketError returns the error of a socket (SO_ERROR), or nil.
func socketError(c net.Conn) error {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	code := 0
	cerr := rc.Control(func(fd uintptr) { code, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR) })
	if err := errors.Join(cerr, err); err != nil || code == 0 {
		return err
	}
	return syscall.Errno(code)
}

// receiveEnd receives the end of the stream.
func (u *use) receiveEnd() error {
	if err := u.conn.SetReadDeadline(time.Now().Add(u.client.HungTime)); err != nil {
		return err
	}
	n, err := u.conn.Read(u.buf[:1])
	switch {
	case n > 0:
		return &lengthError{u.in.at + uint64(n), u.in.at}
	case errors.Is(err, io.EOF):
		return nil
	}
	return fmt.Errorf("read the end: %w", err)
}

// exchange sends n bytes and receives them. n must be below what socket buffers hold.
func (u *use) exchange(n int) error {
	if err := u.send(n); err != nil {
		return err
	}
	return u.receive(n)
}

// finish ends the client's stream and receives the end of the server's.
func (u *use) finish() error {
	h, ok := u.conn.(interface{ CloseWrite() error })
	if !ok {
		return fmt.Errorf("%T cannot end its stream", u.conn)
	}
	if err := h.CloseWrite(); err != nil {
		return fmt.Errorf("end the stream: %w", err)
	}
	return u.receiveEnd()
}

// short uses a connection once, for which open has cared, and closes it.
func (u *use) short() error { return nil }

// requests sends requests of up to 32 KiB, and waits for each answer.
func (u *use) requests() error {
	for n := 50 + u.below(500); n > 0 && u.wait(u.pause()); n-- {
		if err := u.exchange(1 + u.below(32<<10)); err != nil {
			return err
		}
	}
	return u.finish()
}

// stream sends up to 64 MiB, and receives at the same time.
func (u *use) stream() error {
	var wg sync.WaitGroup
	var sendErr error
	sizes := make(chan int, 1)
	wg.Go(func() {
		defer close(sizes)
		for n := 64 + u.below(960); n > 0; n-- {
			if sendErr = u.send(64 << 10); sendErr != nil {
				_ = u.failed(sendErr) // the receiver would only see that nothing comes
				return
			}
			sizes <- 64 << 10
			if !u.wait(u.pause() / 4) {
				return
			}
		}
	})
	var err error
	for n := range sizes {
		if err == nil {
			if err = u.failed(u.receive(n)); err != nil {
				_ = u.conn.Close() // so that the sender does not wait
			}
		}
	}
	wg.Wait()
	if err := errors.Join(err, sendErr); err != nil {
		return err
	}
	return u.finish()
}

// halfClose ends its stream before it receives anything.
func (u *use) halfClose() error {
	n := 1 + u.below(60<<10)
	if err := u.send(n); err != nil {
		return err
	}
	h, ok := u.conn.(interface{ CloseWrite() error })
	if !ok {
		return fmt.Errorf("%T cannot end its stream", u.conn)
	}
	if err := h.CloseWrite(); err != nil {
		return fmt.Errorf("end the stream: %w", err)
	}
	u.wait(u.pause())
	if err := u.receive(n); err != nil {
		return err
	}
	return u.receiveEnd()
}

// urgent sends an urgent byte with each request. The server leaves it in the stream.
func (u *use) urgent() error {
	for n := 10 + u.below(100); n > 0 && u.wait(u.pause()); n-- {
		size := 1 + u.below(8<<10)
		if err := u.send(size); err != nil {
			return err
		}
		if err := u.sendUrgent(); err != nil {
			return fmt.Errorf("write an urgent byte: %w", err)
		}
		more := u.below(3000)
		if err := u.send(more); err != nil {
			return err
		}
		if err := u.receive(size + 1 + more); err != nil {
			return err
		}
	}
	return u.finish()
}

// sendUrgent sends the next byte of the stream as an urgent byte.
func (u *use) sendUrgent() error {
	b := make([]byte, 1)
	u.out.fill(b)
	if w, ok := u.conn.(interface{ WriteUrgent([]byte) (int, error) }); ok {
		_, err := w.WriteUrgent(b)
		return err
	}
	sc, ok := u.conn.(syscall.Conn)
	if !ok {
		return fmt.Errorf("%T has no urgent data", u.conn)
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = rc.Write(func(fd uintptr) bool {
		serr = unix.Send(int(fd), b, unix.MSG_OOB)
		return !errors.Is(serr, unix.EAGAIN)
	})
	return errors.Join(err, serr)
}

// idle uses a connection now and then.
func (u *use) idle() error {
	for n := 1 + u.below(20); n > 0 && u.wait(100*u.pause()); n-- {
		if err := u.exchange(1 + u.below(100)); err != nil {
			return err
		}
	}
	return u.finish()
}

// datagramTime is how long to wait for the answer to a datagram.
const datagramTime = 300 * time.Millisecond

// datagrams sends UDP datagrams. One may be lost, but none may be changed.
func (u *use) datagrams() error {
	u.began = time.Now()
	c, err := u.client.Dial(u.ctx, "udp", u.client.Address)
	if err != nil {
		u.client.fail(u.kind, Refused, u.began, err)
		return err
	}
	defer c.Close()
	b, back := make([]byte, 1400), make([]byte, 64<<10)
	for n := 500; n > 0 && u.wait(u.pause()); n-- {
		d := stream{seed: u.client.seed()}
		size := 1 + u.below(len(b))
		d.fill(b[:size])
		if _, err := c.Write(b[:size]); err != nil {
			u.counts.lost.Add(1)
			continue // the host is not reachable now
		}
		_ = c.SetReadDeadline(time.Now().Add(datagramTime))
		got, err := c.Read(back)
		if err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.ENETUNREACH) {
				return u.failed(err)
			}
			u.counts.lost.Add(1)
			return nil // a late answer must not be taken for that of the next datagram
		}
		d.at = 0
		if err := d.check(back[:got]); err != nil {
			return u.failed(err)
		}
		if got != size {
			return u.failed(&lengthError{uint64(got), uint64(size)})
		}
		u.counts.bytes.Add(int64(got))
	}
	return nil
}
