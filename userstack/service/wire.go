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

	"smcr/internal/cgroup"
	"smcr/smc"
	"smcr/userstack"
	"smcr/userstack/attach"
	"smcr/userstack/divert"
	"smcr/userstack/engine"
	"smcr/userstack/internal/inside"
	"smcr/userstack/relay"
)

// Wire has a Service take connections at the devices of the host: package divert. Programs keep their
// sockets, and need no launcher.
type Wire struct {
	// Cgroup is the folder of a cgroup whose programs use SMC from the start on, or empty.
	Cgroup string
	// NetDevs are the devices at which connections are taken; empty means all.
	NetDevs []string
}

// boundary is the part of a Service that carries connections which the Diverter takes.
type boundary struct {
	s        *Service
	d        *divert.Diverter
	attached *attach.Table
	top      string // where the cgroup tree is
	whole    uint64 // the number of Wire.Cgroup, or 0
	wholeDir string
	tallies  tallies
	shorts   shorts
	places   places
}

// openWire begins to take connections. It must be called by a thread of the network namespace. If the process lacks a right,
// or the kernel a feature, the service goes on without: LacksWire says so.
func (s *Service) openWire(c *Wire) error {
	if c == nil {
		return nil
	}
	w := &boundary{s: s, tallies: tallies{of: map[uint64]*tally{}}, shorts: shorts{dests: map[dest]*destRow{}}}
	err := w.open(c)
	if err == nil {
		s.wire = w
		return nil
	}
	if cerr := w.close(); cerr != nil || !(divert.Lacks(err) || errors.Is(err, cgroup.ErrNoTree)) || s.cfg.Predecessor != nil {
		return errors.Join(err, cerr)
	}
	s.lacksWire = err
	s.log.Warn("connections of programs stay TCP: the stack cannot take them at the devices", "err", err)
	return nil
}

// perUser is divert.Config.PerUser.
func perUser(c *Config) int {
	n := c.Stack.Limits.UserConns
	// A connection has as many descriptors as one of a launcher's program: outer and inner, and the stack's of both.
	if fds := c.UserFDs / 4; fds > 0 && (n == 0 || fds < n) {
		n = fds
	}
	return n
}

// LacksWire returns why the service does not take connections although it was to, or nil.
func (s *Service) LacksWire() error { return s.lacksWire }

func (w *boundary) open(c *Wire) (err error) {
	g := w.s.programs.Guard()
	w.wholeDir = c.Cgroup
	if w.top, err = cgroup.Top(); err != nil {
		return fmt.Errorf("service: %w", err)
	}
	if w.d, err = divert.New(divert.Config{Handle: w.handle, PerUser: perUser(&w.s.cfg), Drained: w.s.cfg.Predecessor != nil, Log: w.s.log, Guard: g}); err != nil {
		return err
	}
	if c.Cgroup != "" {
		if w.whole, err = cgroup.ID(c.Cgroup); err != nil {
			return fmt.Errorf("service: the cgroup of the programs: %w", err)
		}
		if err := w.d.Attach(w.whole, divert.Does{Connect: true, Accept: true}); err != nil {
			return err
		}
	}
	if w.attached, err = attach.New(attach.Config{Top: w.top, Namespace: w.s.netns, Boundary: w, MaxRuns: w.s.cfg.UserSessions, Log: w.s.log, Guard: g}); err != nil {
		return err
	}
	if err := w.find(); err != nil {
		return err
	}
	w.s.programs.ListAlso(w.list)
	w.followPlaces()
	return w.d.Follow(func(name string) bool { return len(c.NetDevs) == 0 || slices.Contains(c.NetDevs, name) })
}

// find attaches the cgroups of programs under smcr run that another stack has made.
func (w *boundary) find() error {
	if err := w.attached.Find(); err != nil {
		return fmt.Errorf("service: cgroups of programs that run: %w", err)
	}
	return nil
}

// settleTime is how long a service that ends waits for connections that are being made.
const settleTime = 200 * time.Millisecond

// settle has new connections be TCP, and waits a moment for those that are being made.
func (w *boundary) settle() {
	if w == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	if err := w.d.Settle(ctx); err != nil {
		w.s.log.Warn("connections that are being made may be lost", "err", err)
	}
}

// close resets the connections that are left.
func (w *boundary) close() (err error) {
	if w == nil {
		return nil
	}
	w.places.close()
	if w.attached != nil {
		err = w.attached.Close()
	}
	if w.d != nil {
		err = errors.Join(err, w.d.Close())
	}
	return err
}

// busy reports whether there are programs that use the stack, or may do so. After a takeover, those with connections do.
func (w *boundary) busy() bool {
	if w == nil {
		return false
	}
	may := w.whole != 0 || len(w.attached.Entries()) > 0
	return may && !w.s.succession.handedOver() || w.d.Busy()
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
	var d, copied *userstack.DeclineError
	switch {
	case err == nil:
		w.tallies.count(f.Cgroup, f.Role, nil)
		w.carry(f, tcp, conn)
	case errors.As(err, &d):
		w.tallies.count(f.Cgroup, f.Role, d)
		log.Debug("connection stays TCP", "err", err)
		s.programs.StaysTCPOf(owner, f.Cookie, f.Role == smc.Client, err)
		if f.Role == smc.Client && lasts(d) {
			w.quiet(f, divert.Silence{For: declinedFor, Why: declinedBy(d)})
		}
		if err := f.Splice(); err != nil {
			log.Info("connection lost", "err", err)
		}
	case f.Role == smc.Client && errors.As(s.programs.NoAnswer(f.UID, f.Tuple.Remote, err), &copied):
		log.Info("connection made again over TCP", "err", err)
		w.tallies.count(f.Cgroup, f.Role, copied)
		s.programs.StaysTCPOf(owner, f.Cookie, true, copied)
		w.quiet(f, divert.Silence{For: s.programs.Quiet(f.UID, f.Tuple.Remote), Why: copied.Code})
		f.Retry()
	default:
		log.Info("rendezvous failed", "err", err)
		f.Reset()
	}
}

// declinedFor is how long the connections of a user to a port are TCP from the start, after one that
// was declined: those cost a handshake and are carried.
const declinedFor = 10 * time.Second

// declinedBy is the reason of the connections that follow one that was declined. A path has two ends, and which of them found
// that nothing passes says nothing.
func declinedBy(d *userstack.DeclineError) smc.Diagnosis {
	if d.Remote && d.Code != smc.DiagNoPath || d.Code == 0 {
		return smc.DiagPeerDeclined
	}
	return d.Code
}

// lasts reports whether the next connections would be declined as well. Those that came as a link failed would not: the
// link group has another link, or is a new one.
func lasts(d *userstack.DeclineError) bool {
	return d.Code != smc.DiagNoActiveLink && d.Code != smc.DiagNoServerLink
}

// quiet has connections like that of f not announced for a time.
func (w *boundary) quiet(f *divert.Flow, s divert.Silence) {
	if err := w.d.Quiet(f.UID, f.Tuple.Remote, s); err != nil {
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

var _ inside.Sole = (*outer)(nil)

// Sole implements inside.Sole.
func (o *outer) Sole() {}

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
	began, made, carried := time.Now(), f.Age(), uint64(0)
	r.Carried = func() { carried = carriage.Bytes() }
	over := func(reset bool, err error) {
		defer leave()
		w.learn(f, began, made, carried)
		w.tallies.reset(f.Cgroup, carriage.ResetReason())
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

// Peek implements relay.End. If the program resets the connection behind the end of its stream, a read
// reports that end, and SO_ERROR the reset (RFC 9293, section 3.10.7.4: CLOSE-WAIT).
func (e innerEnd) Peek() (n int, err error) {
	n, err = e.Socket.Peek()
	if n > 0 || err != nil {
		return n, err
	}
	rc, err := e.Conn().SyscallConn()
	if err != nil {
		return 0, err
	}
	code := 0
	if err := rc.Control(func(fd uintptr) { code, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR) }); err != nil {
		return 0, err
	}
	if code != 0 {
		return 0, os.NewSyscallError("read", unix.ECONNRESET)
	}
	return 0, nil
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
