// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"syscall"

	"golang.org/x/sys/unix"

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
		_ = x.end.Control(drain)
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
		_ = x.sock.Control(func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) })
	case joined.PokeTCP:
		_ = x.sock.Control(func(fd int) error {
			return unix.Sendto(fd, []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
		})
	case joined.CloseTCP, joined.ResetTCP:
		if a.Verb == joined.ResetTCP {
			_ = x.sock.Control(func(fd int) error {
				return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			})
		}
		x.left = true
		done := x.done
		x.sock.CloseAside(func() {
			if done != nil {
				// No guard: done has one.
				go done()
			}
		})
	}
}

// drain reads what a socket has.
func drain(fd int) error {
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
		if err != nil || n == 0 {
			return err
		}
	}
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
