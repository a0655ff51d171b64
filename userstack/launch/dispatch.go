// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

func newSupervisor(ctx context.Context, cutOrphans <-chan struct{}, fd int, sessions *sessions, decide time.Duration, still func(), adapt bool, log *slog.Logger) (*supervisor, error) {
	stop, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	poll, err := newPoller()
	if err != nil {
		_ = unix.Close(stop)
		return nil, err
	}
	x := newLooks(ctx)
	s := &supervisor{
		ctx: ctx, cutOrphans: cutOrphans, l: &notify{fd: fd, looks: x}, looks: x, ends: endIndex{looks: x}, sessions: sessions, log: log, stats: newCounters(), poll: poll, decide: decide, stop: stop, quiet: quiet{f: still},
		sockets: newSockets(), endCopies: budget{max: maxEndCopies()}, earlyHeld: budget{max: maxEndCopies() / earlyShare},
	}
	if adapt {
		s.worth = new(worth)
	}
	s.l.syncWakeUp()
	s.tasks.guard.Count = s.stats.panicked
	s.tasks.guard.Log, x.guard, poll.guard, s.quiet.guard = log, &s.tasks.guard, &s.tasks.guard, &s.tasks.guard
	s.connector.Guard = &s.tasks.guard
	if !sessions.here.none {
		sessions.here.open()
	}
	sessions.ctx, sessions.log, sessions.tasks, sessions.renew = ctx, log, &s.tasks, s.renewAll
	s.tasks.begin("the watch on the session with the stack", sessions.follow)
	return s, nil
}

// close waits for all goroutines, which s.ctx has to have ended.
func (s *supervisor) close() {
	s.poll.halt() // it starts goroutines
	s.quiet.close()
	if s.receiver != nil {
		s.receiver.wait()
	}
	s.tasks.wg.Wait()
	s.tellNotes()
	s.sessions.close(s.sessions.last()) // goroutines use it until here
	for _, l := range s.sockets.allListeners() {
		l.close()
	}
	s.poll.close()
	_ = s.connector.Close() // the goroutines that used it are gone
	s.epolls.close()
	s.looks.threads.close()
	s.sessions.here.close()
	_ = unix.Close(s.stop)
}

// interrupt makes serve return.
func (s *supervisor) interrupt() { wakeUp(s.stop) }

func (s *supervisor) snapshot() Stats { return s.stats.snapshot() }

// dispatch starts the answer to n. It does not block: everything that reads
// more of the program than the link of a descriptor runs in a goroutine.
func (s *supervisor) dispatch(n *notif) {
	if n.PID == 0 { // a task that is not visible in the PID namespace of the launcher
		s.cont(n)
		return
	}
	if s.l.stores.earlier(n) == nil {
		s.answer(n)
		return
	}
	s.begin(n, func() {
		for over := s.l.stores.earlier(n); over != nil; over = s.l.stores.earlier(n) {
			select {
			case <-over:
			case <-s.looks.over:
				return
			}
		}
		s.answer(n)
	})
}

// answer starts the answer to n when no earlier write into the memory of its
// thread is running.
func (s *supervisor) answer(n *notif) {
	switch n.Nr {
	case unix.SYS_CONNECT:
		s.connect(n)
	case unix.SYS_ACCEPT4, sysAccept:
		s.accept(n)
	case unix.SYS_BIND:
		s.bind(n)
	case unix.SYS_LISTEN:
		s.begin(n, func() { s.listen(n) })
	case unix.SYS_GETPEERNAME, unix.SYS_GETSOCKNAME:
		s.withConn(n, s.getname)
	case unix.SYS_SETSOCKOPT, unix.SYS_GETSOCKOPT:
		s.sockets.noteSavesSYN(n)
		if !s.tellsDefer(n) {
			s.withConn(n, s.sockopt)
		}
	case unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_SENDMMSG:
		s.withConn(n, s.sends)
	case unix.SYS_RECVFROM, unix.SYS_RECVMSG:
		s.withConn(n, answerReceive)
	case unix.SYS_IOCTL:
		s.withConn(n, answerIoctl)
	case unix.SYS_LANDLOCK_CREATE_RULESET:
		s.begin(n, func() {
			if n.limitsNetwork() && !s.landlock.Swap(true) {
				s.log.Info("new connections are plain TCP from now on: " + ReasonLandlock)
			}
			s.cont(n)
		})
	default:
		if n.Nr == unix.SYS_EPOLL_CREATE1 || n.Nr == sysEpollCreate {
			s.epolls.made()
		}
		s.cont(n)
	}
}

// noteSavesSYN notes that the program asks for saved SYNs of a listening socket: the
// kernel returns each of them once, so the launcher must not read them.
func (t *sockets) noteSavesSYN(n *notif) {
	if n.Nr != unix.SYS_SETSOCKOPT || int32(n.Args[1]) != unix.IPPROTO_TCP || int32(n.Args[2]) != unix.TCP_SAVE_SYN || !t.anyListener() {
		return
	}
	if inode, err := socketInode(n.tid(), n.fdArg()); err == nil {
		if l := t.listener(inode); l != nil {
			l.saves.Store(true)
		}
	}
}

// withConn makes f answer n if its socket is a connection. Otherwise the kernel
// does the call.
func (s *supervisor) withConn(n *notif, f func(*notif, *conn)) {
	if !s.sockets.anyToAsk() {
		s.cont(n)
		return
	}
	inode, err := socketInode(n.tid(), n.fdArg())
	if err != nil {
		s.cont(n)
		return
	}
	switch c, d := s.sockets.connOrDecision(inode); {
	case c != nil:
		s.begin(n, func() { f(n, c) })
	case d != nil:
		s.begin(n, func() {
			d.wait(s.ctx)
			if c := s.sockets.conn(inode); c != nil {
				f(n, c)
				return
			}
			s.cont(n)
		})
	default:
		s.cont(n)
	}
}
