// SPDX-License-Identifier: Apache-2.0

package service

import (
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/retry"
	"smcr/userstack/divert"
	"smcr/userstack/engine"
	"smcr/userstack/internal/inside"
)

// near is a Flow's connection with the peer, which an engine watches for its whole life: who reads from it is told of
// events, and no goroutine waits.
type near struct {
	sock          *engine.Socket
	local, remote *net.TCPAddr
	writeBy       atomic.Int64 // in nanoseconds, or 0

	mu     sync.Mutex
	notify func()
	events uint64 // how many
	rough  bool   // one was not of data only
	read   uint64 // the first events, of which nothing is left to read
}

var (
	_ inside.TCPConn  = (*near)(nil)
	_ inside.Notifier = (*near)(nil)
)

// nearOf returns the connection of a Flow with the peer. loop may be nil.
func nearOf(f *divert.Flow, loop *engine.Loop) (inside.TCPConn, error) {
	if loop == nil {
		return f.Outer()
	}
	n := &near{local: net.TCPAddrFromAddrPort(f.Tuple.Local), remote: net.TCPAddrFromAddrPort(f.Tuple.Remote)}
	made := make(chan struct{})
	fd, giveBack, err := f.LendOuter(func() {
		if <-made; n.sock != nil {
			_ = n.Close()
		}
	})
	if err != nil {
		return nil, err
	}
	defer close(made)
	if n.sock, err = loop.NewLent(fd, n.event, giveBack); err != nil {
		giveBack()
		return nil, err
	}
	return n, nil
}

// event is called by the engine.
func (n *near) event(readable, _, plain bool) {
	if !readable {
		return
	}
	n.mu.Lock()
	n.events++
	n.rough = n.rough || !plain
	f := n.notify
	n.mu.Unlock()
	if f != nil {
		f()
	}
}

// Events implements inside.Notifier.
func (n *near) Events() (events uint64, plain bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.events, !n.rough
}

// Notify implements inside.Notifier.
func (n *near) Notify(f func(), read uint64) {
	n.mu.Lock()
	n.notify, n.read = f, max(n.read, read)
	unread := n.events > n.read
	n.mu.Unlock()
	if f != nil && unread {
		f()
	}
}

// SyscallConn implements syscall.Conn.
func (n *near) SyscallConn() (syscall.RawConn, error) { return n.sock.SyscallConn() }

// Read implements net.Conn.
func (n *near) Read(b []byte) (k int, err error) {
	rc, _ := n.sock.SyscallConn()
	cerr := rc.Read(func(fd uintptr) bool {
		err = retry.Interrupted(func() (err error) { k, err = unix.Read(int(fd), b); return err })
		return err != unix.EAGAIN
	})
	switch {
	case cerr != nil:
		return 0, cerr
	case err != nil:
		return 0, os.NewSyscallError("read", err)
	case k == 0 && len(b) > 0:
		return 0, io.EOF
	}
	return k, nil
}

// roomEvery is the interval between two looks for room. The messages of a handshake have always had room, unless the system lacks memory.
const roomEvery = 10 * time.Millisecond

// Write implements net.Conn.
func (n *near) Write(b []byte) (wrote int, err error) {
	for {
		k, err := n.TryWrite(b[wrote:])
		if wrote += k; err != nil || wrote == len(b) {
			return wrote, err
		}
		if by := n.writeBy.Load(); by != 0 && time.Now().UnixNano() >= by {
			return wrote, os.ErrDeadlineExceeded
		}
		time.Sleep(roomEvery)
	}
}

// TryWrite writes as much as there is room for, which may be nothing, and does not wait.
func (n *near) TryWrite(b []byte) (wrote int, err error) {
	cerr := n.sock.Control(func(uintptr) {
		err = retry.Interrupted(func() (err error) {
			k, errno := n.sock.Send(nil, b, nil) // one buffer needs no Message
			if wrote = k; errno != 0 {
				err = errno
			}
			return err
		})
	})
	switch {
	case cerr != nil:
		return 0, cerr
	case err == unix.EAGAIN:
		return 0, nil
	}
	return wrote, os.NewSyscallError("sendto", err)
}

// Close implements net.Conn: the Flow gets its descriptor back.
func (n *near) Close() error { return n.sock.Close() }

// LocalAddr implements net.Conn.
func (n *near) LocalAddr() net.Addr { return n.local }

// RemoteAddr implements net.Conn.
func (n *near) RemoteAddr() net.Addr { return n.remote }

// SetDeadline implements net.Conn.
func (n *near) SetDeadline(t time.Time) error {
	_ = n.SetWriteDeadline(t)
	return n.SetReadDeadline(t)
}

// SetReadDeadline implements net.Conn, as an engine.Socket does.
func (n *near) SetReadDeadline(t time.Time) error { return n.sock.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (n *near) SetWriteDeadline(t time.Time) error {
	by := int64(0)
	if !t.IsZero() {
		by = t.UnixNano()
	}
	n.writeBy.Store(by)
	return nil
}

// SetLinger implements inside.TCPConn: it is the Flow that ends the connection.
func (*near) SetLinger(int) error { return nil }
