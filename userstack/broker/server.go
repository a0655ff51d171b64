// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/guard"
	"smcr/quota"
	"smcr/userstack/internal/bounded"
	"smcr/userstack/internal/rights"
)

// Causes of the end of a Conn's context (context.Cause) other than the
// server's own end.
var (
	// ErrCanceled: the program closed the descriptor, or died, before the
	// service got its end of the pair.
	ErrCanceled = errors.New("broker: the program gave up the connection")
	// ErrLauncherGone means that the launcher ended before the service had its end of
	// the pair, so the program has written nothing that could still be sent.
	ErrLauncherGone = errors.New("broker: the launcher has ended")
)

const (
	// helloTimeout limits the wait for the first message of a new launcher.
	helloTimeout = 5 * time.Second
	// welcomeTimeout limits the launcher's wait for the answer. Without it, the program uses TCP.
	welcomeTimeout = 15 * time.Second
	// answerTimeout bounds each wait for a launcher's answer (Proceed, Attach or
	// Release, BrokenDone). A stopped launcher must not hold a connection for ever.
	answerTimeout = 30 * time.Second
)

// Launcher describes the other end of a session.
type Launcher struct {
	// PID, UID and GID are the credentials of the peer (SO_PEERCRED). PID is 0 if the process is
	// in a PID namespace that the service does not see.
	PID int
	UID uint32
	GID uint32
	// Groups are its supplementary groups (SO_PEERGROUPS).
	Groups []uint32
	// Command is the command line of the program, as the launcher gives it, for display.
	Command string
	// Local is true if programs of this host are to be joined by pairs: see FlagLocal.
	Local bool
	// Chosen is true if the launcher itself asked for that.
	Chosen bool

	rights rights.Rights
	unseen process // the process, if PID is 0
	data   atomic.Value
}

// A Handler does the work of the service for launchers. Its methods are called
// concurrently, each in its own goroutine, and must return when ctx ends. The context of a
// connection does not end with the launcher if the service has its end of the pair by then:
// see [Conn.LauncherGone].
type Handler interface {
	// Listen marks a socket that is about to listen, so that its SYN-ACKs
	// carry the SMC option. An error (a syscall.Errno where there is one) keeps
	// the socket native; the program does not see it. sock is closed after the
	// call.
	Listen(ctx context.Context, l *Launcher, sock *Descriptor) error

	// Connect opens a connection for a program and serves it until it ends. c ends when
	// Connect returns, unless Connect has called Conn.Keep. sock is the program's
	// unconnected TCP socket, which Connect must close. See Conn for the order of calls.
	Connect(ctx context.Context, c *Conn, sock *Descriptor, req ConnectRequest)

	// Accept does the same for a connection that the program accepted.
	Accept(ctx context.Context, c *Conn, sock *Descriptor)

	// SetOption and GetOption act on the TCP socket of a connection that the
	// service holds (see SetSockopt and GetSockopt); value and size are at most
	// MaxValue bytes. They must act with no more than the rights r of the program (see
	// package rights), which are never more than those of the launcher, and none unless
	// the launcher runs as root. Errors that are a syscall.Errno reach the program, others
	// become EINVAL. Both may be called as soon as TakeOver or Ready was called, even
	// before these return.
	SetOption(ctx context.Context, c *Conn, r rights.Rights, level, name int, value []byte) error
	GetOption(ctx context.Context, c *Conn, r rights.Rights, level, name, size int) ([]byte, error)
}

// ConnectRequest is what a program asked for.
type ConnectRequest struct {
	// Remote is the address given to connect(). An IPv4-mapped address stays
	// one; a zone is an interface index in decimal.
	Remote netip.AddrPort
	// Nonblock is true if the program's socket is non-blocking.
	Nonblock bool
}

// Server serves launchers.
type Server struct {
	// Handler does the work. Required.
	Handler Handler
	// Authorize, if set, may refuse a launcher with an error.
	Authorize func(*Launcher) error
	// Opened and Ended, if set, are called at the begin and the end of each session.
	Opened, Ended func(*Launcher)
	// Local, if set, decides about Launcher.Local, which is what the launcher asked for.
	Local func(*Launcher) bool
	// Gone, if set, is called when the launcher has ended or has left the session, at once:
	// before the end of the context of its handlers. No message of it is handled after that.
	Gone func(*Launcher)
	// ByOption tells launchers that only peers with the TCP option have SMC, so
	// that launchers do not need to ask about the others.
	ByOption bool
	// Quota is what users may take of this process's descriptors. Nil is no limit.
	Quota *quota.Budget
	// MaxSessions limits the sessions of each user except root. Zero means
	// DefaultMaxSessions.
	MaxSessions int
	// Log receives what goes wrong. Nil discards.
	Log *slog.Logger
	// Guard handles panics. Each panic ends only one connection or one session.
	// Nil means Log alone.
	Guard *guard.Guard

	once     sync.Once
	warnings *quota.Log
	closing  chan struct{} // a place for each user whose unexpected descriptors are being closed

	handedOver context.Context // ended by handOver
	handOver   context.CancelFunc

	mu        sync.Mutex
	sessions  map[uint32]int          // by user
	declining map[uint32][]*declining // by user, connections that are being declined
	notClosed map[uint32][][]int      // by user, descriptors that must be closed
}

// guarded calls f; an error is that f panicked.
func (s *Server) guarded(what string, f func()) error {
	g := s.Guard
	if g == nil {
		g = &guard.Guard{Log: s.log()}
	}
	return g.Do(what, f)
}

func (s *Server) log() *slog.Logger {
	if s.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return s.Log
}

// Serve accepts launchers on l (of network "unixpacket") until ctx ends or l is closed, then
// waits for all sessions. It closes l. After other failures to accept, such as a lack of
// descriptors, it tries again.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	// No guard: it only makes a system call.
	stop := context.AfterFunc(ctx, func() { _ = bounded.CloseQueue(l) })
	defer stop()
	defer bounded.CloseQueue(l) //nolint:errcheck // it may be closed already
	s.prepare()
	err := quota.Accept(ctx, l.AcceptUnix, func(c *net.UnixConn) {
		// A connection is refused at once. If refused connections waited, each would
		// hold a descriptor meanwhile.
		launcher, err := s.admit(c)
		if err != nil {
			s.warnings.Warn("launcher refused", "err", err)
			return
		}
		wg.Go(func() {
			var err error
			if s.guarded("a launcher's session", func() { err = s.serveConn(ctx, c, launcher) }) == nil && err != nil && ctx.Err() == nil {
				s.warnings.Warn("launcher session failed", "uid", launcher.UID, "err", err)
			}
		})
	}, s.warnings)
	if err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	return nil
}

// ServeConn serves one launcher until the launcher or ctx ends, then waits for the handlers
// of the session. It closes c. It returns nil if the launcher ended the session.
func (s *Server) ServeConn(ctx context.Context, c *net.UnixConn) error {
	s.prepare()
	l, err := s.admit(c)
	if err != nil {
		return err
	}
	return s.serveConn(ctx, c, l)
}

// serveConn is ServeConn for a launcher that was admitted.
func (s *Server) serveConn(ctx context.Context, c *net.UnixConn, l *Launcher) error {
	t := newTransport(c)
	defer s.closeAndLeave(l.UID, t)
	defer bounded.CloseQueue(c) //nolint:errcheck // nobody waits for the result
	if err := c.SetReadDeadline(time.Now().Add(helloTimeout)); err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	m, d, err := t.receive()
	if d != nil {
		_ = d.Close()
	}
	if err != nil {
		return fmt.Errorf("broker: waiting for hello: %w", err)
	}
	if m.Type != TypeHello {
		return fmt.Errorf("%w: %v instead of hello", ErrMalformed, m.Type)
	}
	l.Command, l.Chosen = m.Text, m.Flags&FlagLocal != 0
	l.Local = l.Chosen
	refuse := func(errno syscall.Errno, err error) error {
		_ = t.send(&Message{Type: TypeWelcome, Size: Version, Errno: int32(errno), Text: plainText(err.Error())}, -1)
		return err
	}
	if m.Size != Version {
		return refuse(unix.EPROTO, fmt.Errorf("broker: launcher %d: %w", l.PID, &VersionError{Launcher: m.Size, Stack: Version}))
	}
	if s.Authorize != nil {
		if err := s.Authorize(l); err != nil {
			_ = refuse(unix.EACCES, err)
			return fmt.Errorf("broker: launcher %d refused: %w", l.PID, err)
		}
	}
	welcome := Message{Type: TypeWelcome, Size: Version}
	if s.ByOption {
		welcome.Flags = FlagByOption
	}
	if s.Local != nil {
		l.Local = s.Local(l)
	}
	if l.Local {
		welcome.Flags |= FlagLocal
	}
	if err := t.send(&welcome, -1); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("broker: %w", err)
	}
	if s.Opened != nil {
		s.Opened(l)
	}
	if s.Ended != nil {
		defer s.Ended(l)
	}
	return newSession(s, t, l).run(ctx)
}

// session is the service's side of the session of one launcher.
type session struct {
	s *Server
	t *transport
	l *Launcher

	requests chan struct{}   // a place for each Listen, SetOption and GetOption in progress
	gone     context.Context // ends when the launcher has, after its last message

	wg    sync.WaitGroup
	mu    sync.Mutex
	conns map[uint64]*Conn
}

func newSession(s *Server, t *transport, l *Launcher) *session {
	s.prepare()
	return &session{s: s, t: t, l: l, requests: make(chan struct{}, maxRequests), conns: make(map[uint64]*Conn)}
}

func (ss *session) run(ctx context.Context) error {
	service := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	ss.gone = ctx
	stop := context.AfterFunc(ctx, ss.t.shutdown) // No guard: it makes one system call.
	defer stop()
	defer ss.wg.Wait()
	defer ss.tellHandedOver()()
	defer ss.orphan()
	defer cancel(ErrLauncherGone)
	defer ss.drain()
	if ss.s.Gone != nil {
		defer ss.s.Gone(ss.l)
	}
	reset := false
	for {
		m, d, err := ss.t.receive()
		d.of(ss.l.UID)
		switch {
		case errors.Is(err, io.EOF), reset && errors.Is(err, syscall.ECONNRESET):
			return nil
		case errors.Is(err, syscall.ECONNRESET):
			// The launcher has ended and left messages unread. The kernel reports this
			// before the last messages of the launcher, which may bring ends of pairs.
			reset = true
			continue
		case err == nil && ss.t.ended.Load():
			discard(m, d)
			return nil
		case err == nil:
			err = ss.handle(service, m, d)
		case errors.Is(err, errDescriptorLost):
			if ss.t.ended.Load() {
				return nil
			}
			ss.s.warnings.Warn("a descriptor of a launcher was lost", "uid", ss.l.UID, "launcher", ss.l.PID, "message", m.Type)
			ss.descriptorLost(m)
			err = nil
		}
		if err != nil {
			return fmt.Errorf("broker: launcher %d: %w", ss.l.PID, err)
		}
	}
}

// drain ends the session and discards the messages that the launcher sent before. It stops
// at a descriptor that is not a socket, because the quota does not count further ones.
func (ss *session) drain() {
	ss.t.shutdown()
	for len(ss.t.notSockets) == 0 {
		m, d, err := ss.t.receive()
		if err != nil && !errors.Is(err, ErrMalformed) && !errors.Is(err, errDescriptorLost) {
			return
		}
		discard(m, d)
	}
}

// discard closes the descriptor of a message that nobody acts on. If it is the end of a
// pair, discard marks it for the launcher with MarkUnread.
func discard(m Message, d *Descriptor) {
	if d == nil {
		return
	}
	if m.Type == TypeAttach {
		_ = d.Control(MarkUnread)
	}
	_ = d.Close()
}

// handle acts on one message. It owns d, which may be nil. ctx is that of the service.
func (ss *session) handle(ctx context.Context, m Message, d *Descriptor) error {
	switch m.Type {
	case TypeListen:
		ss.listen(ss.gone, m, d)
		return nil
	case TypeConnect, TypeAccept:
		return ss.open(ctx, m, d)
	case TypeSetOption, TypeGetOption:
		ss.option(m)
		return nil
	case TypeNote:
		return ss.noted(m)
	}
	ss.mu.Lock()
	defer ss.mu.Unlock()
	c := ss.conns[m.Conn]
	if c == nil {
		// The connection ended before the message came.
		discard(m, d)
		return nil
	}
	switch m.Type {
	case TypeProceed, TypeAttach, TypeRelease, TypeBrokenDone:
		// The quota counts the descriptors of a connection, so the launcher may send
		// a pair only once, and only when it was asked for it.
		if m.Type == TypeAttach && (!c.awaitsPair.Load() || c.pairCame.Swap(true)) {
			discard(m, d)
			return fmt.Errorf("%w: %v out of turn", ErrMalformed, m.Type)
		}
		if m.Type == TypeAttach && !ss.checkEnd(c, m, d) {
			return nil
		}
		// The lock is held, so that Conn.end cannot miss a descriptor.
		select {
		case c.answers <- answer{m.Type, d}:
			return nil
		default:
			discard(m, d)
			return fmt.Errorf("%w: %v out of turn", ErrMalformed, m.Type)
		}
	case TypeUrgentDropped:
		select {
		case c.urgentDropped <- struct{}{}:
		default: // late
		}
	case TypeCancel:
		c.cancel(ErrCanceled)
	case TypeDetour:
		return ss.detour(c, m, d)
	default:
		return fmt.Errorf("%w: %v from a launcher", ErrMalformed, m.Type)
	}
	return nil
}

// request calls f in a goroutine and answers m with the result. It waits only while
// maxRequests requests are in progress. A request never needs another message to end, so
// this wait ends.
func (ss *session) request(m Message, f func() ([]byte, error)) {
	ss.requests <- struct{}{}
	ss.wg.Go(func() {
		var v []byte
		var err error
		if ss.s.guarded("a request of a launcher", func() { v, err = f() }) != nil {
			v, err = nil, syscall.EIO
		}
		ss.result(m.Seq, v, err)
		<-ss.requests
	})
}

func (ss *session) open(ctx context.Context, m Message, d *Descriptor) error {
	c := &Conn{ss: ss, id: m.Conn, accept: m.Type == TypeAccept, answers: make(chan answer, 4), urgentDropped: make(chan struct{}, 1)}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	ss.mu.Lock()
	_, dup := ss.conns[m.Conn]
	if !dup && m.Conn != 0 {
		ss.conns[m.Conn] = c
	}
	ss.mu.Unlock()
	if dup || m.Conn == 0 {
		_ = d.Close()
		return fmt.Errorf("%w: connection number %d", ErrMalformed, m.Conn)
	}
	if err := ss.s.Quota.Take(ss.l.UID, connCost); err != nil {
		ss.s.warnings.Warn("connection stays TCP", "uid", ss.l.UID, "launcher", ss.l.PID, "err", err)
		ss.refuse(c, m, d, err)
		return nil
	}
	c.taken.Store(connCost)
	ss.wg.Go(func() {
		defer func() {
			if !c.kept {
				c.end()
			}
		}()
		if ss.s.guarded("a program's connection", func() {
			if m.Type == TypeAccept {
				ss.s.Handler.Accept(c.ctx, c, d)
				return
			}
			req := ConnectRequest{Remote: m.Remote, Nonblock: m.Flags&FlagNonblock != 0}
			ss.s.Handler.Connect(c.ctx, c, d, req)
		}) != nil {
			c.SetCloseReason("internal error of the stack")
			_ = d.Close()
		}
	})
	return nil
}

func (ss *session) result(seq uint32, v []byte, err error) {
	m := Message{Type: TypeResult, Seq: seq, Value: v, Errno: int32(errnoOf(err))}
	if len(v) > MaxValue {
		m.Value, m.Errno = nil, int32(syscall.EINVAL)
	}
	if err != nil {
		m.Text = plainText(err.Error())
	}
	ss.sendOrDrop(&m)
}

// errnoOf returns the errno that err wraps, 0 if err is nil, and EINVAL if err wraps none.
func errnoOf(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	var e syscall.Errno
	if errors.As(err, &e) && e != 0 {
		return e
	}
	return syscall.EINVAL
}

// clip cuts s to MaxText bytes.
func clip(s string) string {
	if len(s) > MaxText {
		return s[:MaxText]
	}
	return s
}
