// SPDX-License-Identifier: Apache-2.0

package service

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"smcr/smc"
	"smcr/userstack"
	"smcr/userstack/divert"
	"smcr/userstack/engine"
	"smcr/userstack/internal/inside"
	"smcr/userstack/relay"
)

// carry has the bytes of a connection carried over SMC-R until it ends.
func (w *boundary) carry(f *divert.Flow, tcp *outer, conn *userstack.Conn) {
	s := w.s
	carriage := s.in.Carriage(conn)
	fd, giveBack, err := f.Split()
	if err != nil {
		s.log.Info("connection lost", "user", f.UID, "remote", f.Tuple.Remote, "err", err)
		_ = conn.Abort()
		return
	}
	app, data, err := takeInner(carriage, fd, giveBack)
	if err != nil {
		s.log.Error("cannot carry a connection", "user", f.UID, "remote", f.Tuple.Remote, "err", err)
		_ = conn.Abort()
		f.Reset()
		return
	}
	_ = conn.SetOOBInline(true) // the option of the program's socket counts
	r := &relay.Relay{
		App: data, Net: conn, Guard: s.in.Guard(), Detach: carriage.Detach, Ended: carriage.Ended, Sending: carriage.Sending,
		ResetProgram: f.ResetProgram,
	}
	leave := s.enterRelay()
	began, made, carried := time.Now(), f.Age(), uint64(0)
	r.Carried = func() { carried = carriage.Bytes() }
	over := func(reset bool, err error) {
		w.learn(f, began, made, carried)
		w.tallies.reset(f.Cgroup, carriage.ResetReason())
		if err != nil { // a panic
			f.Reset()
			leave()
			return
		}
		tcp.whenClosed(func() { // soon: nobody uses the connection any more
			end := func() {
				defer leave()
				if tcp.reset.Load() {
					f.Reset()
				} else {
					f.Finish(reset)
				}
			}
			if reset || tcp.reset.Load() { // which may wait for the program
				go s.in.Guard().Func("the end of a connection", end)()
				return
			}
			_ = s.in.Guard().Do("the end of a connection", end)
		})
	}
	if sock, ok := app.(*engine.Socket); ok {
		carriage.Attach(sock)
		ride(r, conn, carriage, s.ending, over)
		return
	}
	go w.guarded(f, func() {}, func() { over(r.Run(s.ending.Done()), nil) })
}

// learn learns from the end of a connection that began at a time, after it took made to make, whether the next ones are
// worth SMC-R.
func (w *boundary) learn(f *divert.Flow, began time.Time, made time.Duration, carried uint64) {
	if f.Role != smc.Client || w.attached.Always(f.Cgroup) {
		return
	}
	now := time.Now()
	short := isShort(made, now.Sub(began), carried)
	if q, changes := w.shorts.learn(now, began.Add(-made), dest{f.UID, f.Tuple.Remote}, short); changes {
		w.quiet(f, q)
	}
}

// takeInner takes over the descriptor of inner, the program's end of a connection, which is lent. If an engine serves the
// connection, the socket belongs to it.
func takeInner(carriage inside.Carriage, fd int, giveBack func()) (app relay.Conn, data *relay.Socket, err error) {
	if loop := carriage.Loop(); loop == nil {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		giveBack()
		if err != nil {
			return nil, nil, os.NewSyscallError("fcntl", err)
		}
		app = os.NewFile(uintptr(own), "socket")
	} else if app, err = loop.NewLent(fd, nil, giveBack); err != nil {
		giveBack()
		return nil, nil, err
	}
	if data, err = relay.NewSocket(app); err != nil {
		_ = app.Close()
		return nil, nil, err
	}
	return app, data, nil
}
