// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/smc"
	"smcr/userstack"
	"smcr/userstack/divert"
	"smcr/userstack/engine"
	"smcr/userstack/internal/inside"
	"smcr/userstack/relay"
)

// Wire has a Service take connections at the devices of the host: package divert. Programs keep their
// sockets, and need no launcher.
type Wire struct {
	// Cgroup is the folder of the cgroup whose programs use SMC.
	Cgroup string
	// NetDevs are the devices at which connections are taken; empty means all.
	NetDevs []string
}

// boundary is the part of a Service that carries connections which the Diverter takes.
type boundary struct {
	s *Service
	d *divert.Diverter
}

// openWire begins to take connections. It must be called by a thread of the network namespace.
func (s *Service) openWire(c *Wire) error {
	if c == nil {
		return nil
	}
	st, err := os.Stat(c.Cgroup)
	if err != nil {
		return fmt.Errorf("service: the cgroup of the programs: %w", err)
	}
	w := &boundary{s: s}
	w.d, err = divert.New(divert.Config{Handle: w.handle, Log: s.log, Guard: s.programs.Guard()})
	if err != nil {
		return err
	}
	want := func(name string) bool { return len(c.NetDevs) == 0 || slices.Contains(c.NetDevs, name) }
	err = w.d.Attach(st.Sys().(*syscall.Stat_t).Ino, true, true)
	if err == nil {
		err = w.d.Follow(want)
	}
	if err != nil {
		return errors.Join(err, w.d.Close())
	}
	s.wire = w
	return nil
}

// closeWire resets the connections that are left.
func (s *Service) closeWire() error {
	if s.wire == nil {
		return nil
	}
	return s.wire.d.Close()
}

// handle finds out with the peer whether a connection uses SMC-R, and begins to carry it.
func (w *boundary) handle(ctx context.Context, f *divert.Flow) {
	s := w.s
	owner := inside.Owner{UID: f.UID}
	log := s.log.With("remote", f.Tuple.Remote)
	tcp := &outer{TCPConn: f.Outer(), over: make(chan struct{})}
	ctx = inside.WithOwner(ctx, owner)
	var conn *userstack.Conn
	var err error
	if f.Role == smc.Client {
		conn, err = s.stack.Client(ctx, tcp)
	} else {
		conn, err = s.programs.Serve(ctx, tcp, nil)
	}
	var d *userstack.DeclineError
	switch {
	case err == nil:
		w.carry(f, tcp, conn)
	case errors.As(err, &d):
		log.Debug("connection stays TCP", "err", err)
		s.programs.StaysTCPOf(owner, f.Cookie, f.Role == smc.Client, err)
		if f.Role == smc.Client {
			w.quiet(f, declinedFor)
		}
		if err := f.Splice(); err != nil {
			log.Info("connection lost", "err", err)
		}
	case f.Role == smc.Client && s.programs.NoAnswer(f.UID, f.Tuple.Remote, err) != nil:
		log.Info("connection made again over TCP", "err", err)
		w.quiet(f, s.programs.Quiet(f.UID, f.Tuple.Remote))
		f.Retry()
	default:
		log.Info("rendezvous failed", "err", err)
		f.Reset()
	}
}

// declinedFor is how long the connections of a user to a port are TCP from the start, after one that
// was declined: those cost a handshake and are carried.
const declinedFor = 10 * time.Second

// quiet has connections like that of f not announced for a time.
func (w *boundary) quiet(f *divert.Flow, t time.Duration) {
	if err := w.d.Quiet(f.UID, f.Tuple.Remote, t); err != nil {
		w.s.log.Warn("connections to a peer are announced in vain", "remote", f.Tuple.Remote, "err", err)
	}
}

// outer is the TCP connection below an SMC-R connection. The stack closes it when the connection has
// ended for both sides, and the Flow ends then.
type outer struct {
	inside.TCPConn
	reset atomic.Bool
	over  chan struct{}
	once  sync.Once
}

// SetLinger implements inside.TCPConn. The socket resets the connection until the Flow ends in order.
func (o *outer) SetLinger(sec int) error {
	o.reset.Store(sec == 0)
	return nil
}

// Close implements inside.TCPConn.
func (o *outer) Close() error {
	o.once.Do(func() { close(o.over) })
	return nil
}

// carry has the bytes of a connection carried over SMC-R until it ends.
func (w *boundary) carry(f *divert.Flow, tcp *outer, conn *userstack.Conn) {
	s := w.s
	carriage := s.programs.Carriage(conn)
	fd, err := f.Split()
	if err != nil {
		s.log.Info("connection lost", "remote", f.Tuple.Remote, "err", err)
		_ = conn.Abort()
		return
	}
	app, data, err := takeInner(carriage, fd)
	if err != nil {
		s.log.Error("cannot carry a connection", "remote", f.Tuple.Remote, "err", err)
		_ = conn.Abort()
		f.Reset()
		return
	}
	_ = conn.SetOOBInline(true) // the option of the program's socket counts
	r := &relay.Relay{
		App: innerEnd{data, f}, Net: conn, Guard: s.programs.Guard(), Linger0: new(atomic.Bool), Detach: carriage.Detach,
		Broken: func(syscall.Errno) { f.ResetProgram() },
	}
	leave := s.enterRelay()
	over := func(reset bool, err error) {
		defer leave()
		if err != nil { // a panic
			f.Reset()
			return
		}
		<-tcp.over // soon: nobody uses the connection any more
		if tcp.reset.Load() {
			f.Reset()
		} else {
			f.Finish(reset)
		}
	}
	if sock, ok := app.(*engine.Socket); ok {
		carriage.Attach(sock)
		ride(r, conn, carriage, s.ending, context.Background(), over)
		return
	}
	over(r.Run(s.ending.Done()), nil)
}

// innerEnd is the program's end of a connection.
type innerEnd struct {
	*relay.Socket
	f *divert.Flow
}

// ShutDown implements relay.End. After a reset behind the end of the peer's stream, TCP reports the end of
// the stream once more, and EPIPE to writes.
func (e innerEnd) ShutDown() error {
	e.f.ResetProgram()
	return e.Close()
}

// takeInner takes over a descriptor of the program's end of a connection. If an engine serves the
// connection, the socket belongs to it.
func takeInner(carriage inside.Carriage, fd int) (app relay.Conn, data *relay.Socket, err error) {
	if loop := carriage.Loop(); loop == nil {
		app = os.NewFile(uintptr(fd), "socket")
	} else if app, err = loop.NewSocket(fd); err != nil {
		unix.Close(fd)
		return nil, nil, err
	}
	if data, err = relay.NewSocket(app); err != nil {
		_ = app.Close()
		return nil, nil, err
	}
	return app, data, nil
}
