// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/internal/bounded"
	"smcr/userstack/internal/joined"
)

// do carries out an action. The caller holds h.mu.
func (h *holding) do(a joined.Action) {
	x := &h.side[a.Side]
	switch a.Verb {
	case joined.ShutEnd:
		_ = x.end.Control(func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) })
	case joined.CutEnd:
		_ = x.end.Control(func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RDWR) })
	case joined.DropEnd:
		_ = x.end.Control(bounded.Drop)
		_ = x.end.Close()
	case joined.ResetEnd:
		_ = h.side[a.Side.Peer()].end.Control(func(fd int) error {
			// If it fails, there is unread data already, or the program has shut down
			// writing.
			return unix.Sendto(fd, []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
		})
		_ = x.end.Close()
	case joined.AwaitLate:
		x.late = true
		_ = x.end.Control(func(fd int) error {
			_ = h.o.set.Remove(fd)
			return h.o.set.Add(fd, unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLET, h.id<<eventBits|eventEnd|uint64(a.Side))
		})
	case joined.Tell:
		h.tell(x)
	case joined.ShutTCP:
		h.inTurn(a.Side, func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) })
	case joined.PokeTCP:
		h.inTurn(a.Side, func(fd int) error {
			return unix.Sendto(fd, []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
		})
	case joined.CloseTCP, joined.ResetTCP:
		if a.Verb == joined.ResetTCP {
			h.inTurn(a.Side, func(fd int) error {
				return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			})
		}
		x.left = true
		sock, done, reset := x.sock, x.done, a.Verb == joined.ResetTCP
		h.turn(a.Side, func() {
			if !reset {
				// A close that waits because of SO_LINGER is in a goroutine of its own.
				_ = sock.Control(func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) })
			}
			sock.CloseAside(func() {
				if done != nil {
					// No guard: done has one.
					go done()
				}
			})
		})
	}
}

// inTurn makes a system call on the TCP socket of a side. A program can keep the lock of the
// socket, so the goroutine that serves the holdings of all users does not wait for the call.
func (h *holding) inTurn(s joined.Side, f func(fd int) error) {
	sock := h.side[s].sock
	h.turn(s, func() { _ = sock.Control(f) })
}

// peerTime bounds how long a call on the TCP socket of one side waits for the calls of the
// other side that were decided before it: that program may keep the lock of its socket. Time
// without a processor does not count.
const peerTime = time.Second

// turn calls f in another goroutine, after what was decided before for both sides. So the
// sockets end in the order in which the programs ended, and TIME-WAIT is where it belongs.
// The caller holds h.mu.
func (h *holding) turn(s joined.Side, f func()) {
	own, peer, over := h.side[s].last, h.side[s.Peer()].last, make(chan struct{})
	h.side[s].last = over
	go h.o.guarded(func() {
		defer close(over)
		if own != nil {
			<-own
		}
		if peer != nil {
			bounded.Wait(peer, peerTime)
		}
		f()
	})()
}

// tell has the launcher of a side tell the program that the connection was reset.
func (h *holding) tell(x *heldSide) {
	errno := unix.ECONNRESET
	_ = x.sock.Control(func(fd int) error {
		if v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && v != 0 {
			errno = syscall.Errno(v)
		}
		return nil
	})
	c := x.c
	c.SetCloseReason("the TCP connection was reset")
	go h.o.guarded(func() {
		ctx, cancel := context.WithTimeout(context.Background(), launcherTime)
		defer cancel()
		_ = c.Broken(ctx, errno)
	})()
}
