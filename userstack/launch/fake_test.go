// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"io"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
	"smcr/userstack/internal/connector"
	"smcr/userstack/internal/rights"
	"smcr/userstack/internal/sockopt"
	"smcr/userstack/relay"
)

// fakeStack is a service that carries "SMC" connections over the TCP socket
// itself, byte by byte, so that any peer will do. What it answers is chosen by
// the test.
type fakeStack struct {
	t testing.TB

	notCandidate bool          // everything stays native
	noPeer       bool          // peers have no SMC
	decline      string        // CLC handshakes end in TCP, for this reason
	atOnce       bool          // those of servers end before there is a pair
	reason       uint32        // number of decline, with atOnce
	flagTime     time.Duration // sockets are non-blocking while they are connected, which takes this long
	estDelay     time.Duration // before Established
	clcDelay     time.Duration // before Ready
	estGate      chan struct{} // if set, Established waits until it is closed
	clcGate      chan struct{} // if set, a client's Ready does
	failCLC      syscall.Errno // CLC handshakes break the connection
	decide       time.Duration // not the stack's: how long the launcher waits for SO_ERROR
	breakAfter   int64         // bytes from the peer after which connections break
	byOption     bool          // the TCP option alone tells who speaks SMC
	local        bool          // programs of the host are joined
	closeDelay   time.Duration // between the end of a broken connection and Closed
	listenGate   chan struct{} // if set, Listen waits until it is closed
	acceptGate   chan struct{} // if set, each Accept takes one before it answers

	connects, accepts, listens, options atomic.Int64
	defers                              atomic.Int64 // sockets of Listen with TCP_DEFER_ACCEPT
	noted                               atomic.Int64 // connections that it was not asked about
	released, attached                  atomic.Int64
	resets                              atomic.Int64 // SO_LINGER set so that a close resets
	mark                                atomic.Int64 // SO_MARK when an option was set last

	mu     sync.Mutex
	socks  map[*broker.Conn]*broker.Descriptor
	peers  []netip.Addr // of connections that it was asked about, if there is an acceptGate
	active atomic.Int64
}

// fresh returns a fake that answers the same and has counted nothing.
func (f *fakeStack) fresh() *fakeStack {
	return &fakeStack{
		notCandidate: f.notCandidate, noPeer: f.noPeer, decline: f.decline, flagTime: f.flagTime,
		estDelay: f.estDelay, clcDelay: f.clcDelay, failCLC: f.failCLC, breakAfter: f.breakAfter, decide: f.decide,
	}
}

func (f *fakeStack) Noted(_ *broker.Launcher, notes []broker.Note) { f.noted.Add(int64(len(notes))) }

func (f *fakeStack) set(c *broker.Conn, d *broker.Descriptor) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.socks == nil {
		f.socks = make(map[*broker.Conn]*broker.Descriptor)
	}
	if d == nil {
		delete(f.socks, c)
		return
	}
	f.socks[c] = d
}

func (f *fakeStack) Listen(ctx context.Context, _ *broker.Launcher, sock *broker.Descriptor) error {
	f.listens.Add(1)
	await(ctx, f.listenGate)
	if f.notCandidate {
		return syscall.EOPNOTSUPP
	}
	return sock.Control(func(fd int) error {
		if v, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT); err == nil && v > 0 {
			f.defers.Add(1)
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_SAVE_SYN, 1)
	})
}

func pause(ctx context.Context, d time.Duration) {
	if d == 0 {
		return
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// await waits until gate is closed. A gate that is nil is open.
func await(ctx context.Context, gate <-chan struct{}) {
	if gate == nil {
		return
	}
	select {
	case <-gate:
	case <-ctx.Done():
	}
}

func (f *fakeStack) Connect(ctx context.Context, c *broker.Conn, sock *broker.Descriptor, req broker.ConnectRequest) {
	f.connects.Add(1)
	f.active.Add(1)
	defer f.active.Add(-1)
	f.set(c, sock)
	defer f.set(c, nil)
	defer sock.Close()
	if f.notCandidate {
		_ = c.NotCandidate("not on a link with SMC")
		return
	}
	f.flag(ctx, sock)
	if err := testConnector.Connect(ctx, sock, req.Remote); err != nil {
		errno, ok := err.(syscall.Errno)
		if !ok {
			errno = syscall.ECONNABORTED
		}
		_ = c.Failed(errno, err.Error())
		return
	}
	pause(ctx, f.estDelay)
	await(ctx, f.estGate)
	if f.noPeer {
		_ = c.Established(ctx, false)
		return
	}
	if err := c.Established(ctx, true); err != nil {
		return
	}
	pause(ctx, f.clcDelay)
	await(ctx, f.clcGate)
	if f.failCLC != 0 {
		_ = c.Failed(f.failCLC, "the peer broke the handshake")
		return
	}
	mode := broker.ModeSMCR
	if f.decline != "" {
		mode = broker.ModeTCP
	}
	end, err := c.Ready(ctx, mode, f.decline)
	if err != nil {
		return
	}
	if end == nil {
		f.released.Add(1)
		return
	}
	f.carry(c, end, sock)
}

// flag is what a service does to a socket that was held up while it connected it.
func (f *fakeStack) flag(ctx context.Context, sock *broker.Descriptor) {
	if f.flagTime == 0 {
		return
	}
	err := sock.Control(func(fd int) error {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err != nil {
			return err
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags|unix.O_NONBLOCK); err != nil {
			return err
		}
		pause(ctx, f.flagTime)
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETFL, flags)
		return err
	})
	if err != nil {
		f.t.Errorf("flags: %v", err)
	}
}

func (f *fakeStack) Accept(ctx context.Context, c *broker.Conn, sock *broker.Descriptor) {
	f.accepts.Add(1)
	f.active.Add(1)
	defer f.active.Add(-1)
	f.set(c, sock)
	defer f.set(c, nil)
	defer sock.Close()
	if f.acceptGate != nil {
		f.asked(sock)
		await(ctx, f.acceptGate)
	}
	if f.noPeer {
		_ = c.NotCandidate("the SYN had no option")
		return
	}
	if f.atOnce {
		c.SetReason(f.reason, 0)
		_ = c.Declined(f.decline)
		return
	}
	end, err := c.TakeOver(ctx)
	if err != nil {
		return
	}
	pause(ctx, f.clcDelay)
	mode := broker.ModeSMCR
	if f.decline != "" {
		mode = broker.ModeTCP
	}
	if _, err := c.Ready(ctx, mode, f.decline); err != nil {
		return
	}
	f.carry(c, end, sock)
}

// asked notes the peer of an accepted connection.
func (f *fakeStack) asked(sock *broker.Descriptor) {
	_ = sock.Control(func(fd int) error {
		sa, err := unix.Getpeername(fd)
		if err == nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.peers = append(f.peers, toAddrPort(sa).Addr())
		}
		return err
	})
}

// carry relays between the program's pair and the TCP socket.
func (f *fakeStack) carry(c *broker.Conn, end, sock *broker.Descriptor) {
	f.attached.Add(1)
	ctx := c.LauncherGone() // what the program wrote is sent though its launcher has gone
	defer end.Close()
	var app *relay.Socket
	if err := end.Control(func(fd int) (err error) { app, err = endOf(fd); return err }); err != nil {
		f.t.Errorf("pair: %v", err)
		return
	}
	// Whatever ends this, nothing reads from the pair afterwards.
	defer func() { _ = end.Control(broker.MarkUnread) }()
	defer app.Close()
	var tcp *relay.TCP
	if err := sock.Control(func(fd int) (err error) { tcp, err = tcpOf(fd); return err }); err != nil {
		f.t.Errorf("socket: %v", err)
		return
	}
	defer tcp.Close()
	if f.breakAfter > 0 {
		stop := context.AfterFunc(ctx, func() { _ = app.Close(); _ = tcp.Close() })
		defer stop()
		_, _ = tcp.WriteTo(&breaker{app, f.breakAfter})
		_ = c.Broken(ctx, syscall.ECONNRESET)
		f.set(c, nil)
		_ = app.Close()
		_ = end.Close()
		pause(ctx, f.closeDelay)
		return
	}
	app.DropUrgent = func() { _ = c.DropUrgent(ctx) }
	r := &relay.Relay{App: app, Net: tcp, LauncherGone: ctx.Done(), Broken: func(e syscall.Errno) {
		_ = c.Broken(context.WithoutCancel(ctx), e)
		_ = end.Control(broker.MarkUnread)
	}}
	r.Run(nil)
}

// breaker is an io.Writer that takes no more than left bytes, and fails then.
type breaker struct {
	w    io.Writer
	left int64
}

func (b *breaker) Write(p []byte) (int, error) {
	n, err := b.w.Write(p[:min(int64(len(p)), b.left)])
	if b.left -= int64(n); err == nil && b.left == 0 {
		err = io.ErrShortWrite
	}
	return n, err
}

func (f *fakeStack) SetOption(_ context.Context, c *broker.Conn, r rights.Rights, level, name int, value []byte) error {
	f.options.Add(1)
	f.mu.Lock()
	d := f.socks[c]
	f.mu.Unlock()
	if d == nil {
		return syscall.ENOTCONN
	}
	if level == unix.SOL_SOCKET && name == unix.SO_LINGER && slices.Equal(value, []byte{1, 0, 0, 0, 0, 0, 0, 0}) {
		f.resets.Add(1)
	}
	err := sockopt.WithRights(r, true, level, name, func() error { return sockopt.Set(d, level, name, value) })
	_ = d.Control(func(fd int) error {
		mark, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK)
		f.mark.Store(int64(mark))
		return err
	})
	return err
}

func (f *fakeStack) GetOption(_ context.Context, c *broker.Conn, r rights.Rights, level, name, size int) (v []byte, err error) {
	f.options.Add(1)
	f.mu.Lock()
	d := f.socks[c]
	f.mu.Unlock()
	if d == nil {
		return nil, syscall.ENOTCONN
	}
	err = sockopt.WithRights(r, false, level, name, func() (err error) {
		v, err = sockopt.Get(d, level, name, size)
		return err
	})
	return v, err
}

// client starts the fake's server on a socketpair and returns a session.
func (f *fakeStack) client() *broker.Client {
	f.t.Helper()
	ours, theirs := sessionPair(f.t)
	ctx, cancel := context.WithCancel(context.Background())
	srv := &broker.Server{Handler: f, ByOption: f.byOption, Local: func(*broker.Launcher) bool { return f.local }}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := srv.ServeConn(ctx, ours); err != nil && ctx.Err() == nil {
			f.t.Errorf("server: %v", err)
		}
	})
	cl, err := broker.NewClient(ctx, theirs, f.t.Name())
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		_ = cl.Close()
		cancel()
		wg.Wait()
	})
	return cl
}

// testConnector connects in the service's place. It ends with the process.
var testConnector connector.Connector
