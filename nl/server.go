// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"smcr/guard"
	"smcr/internal/retry"
	"smcr/quota"
)

// Limits of a server.
const (
	defaultRequestTimeout  = 10 * time.Second
	defaultAnswerTimeout   = 30 * time.Second
	defaultMaxConnsPerUser = 64
	idleTimeout            = 5 * time.Minute
	sendTimeout            = 5 * time.Second

	// userAnswers bounds the answers that one user other than root gets at a time.
	// Each may be a whole table.
	userAnswers = 4
	// maxRefusing is how many connections may wait, and userRefusing how many of one user, for refuseTime at most, for the
	// request that is answered with a refusal. More connections are closed at once.
	maxRefusing  = 8
	userRefusing = 2
	refuseTime   = time.Second
)

// A ServerConfig has the options of a [Server]. The zero value has useful defaults.
type ServerConfig struct {
	// Logger gets what the server does and refuses. With nil there is no log.
	Logger *slog.Logger

	// Guard reports panics. A panic ends the connection of one client. By default
	// panics are only logged, by Logger.
	Guard *guard.Guard

	// Authorize reports whether a peer may change the state of the stack. Every user
	// may read. By default, root and the user of the process may change it.
	Authorize func(Peer) bool

	// RequestTimeout is how long the Control may take to answer, 10 s by default.
	RequestTimeout time.Duration

	// AnswerTimeout is how long a peer may take to read the whole answer to one
	// datagram, 30 s by default.
	AnswerTimeout time.Duration

	// Quota has the descriptors of this process; each connection takes one. Nil means
	// no limit.
	Quota *quota.Budget

	// MaxConnsPerUser is the largest number of connections of one user other than
	// root, 64 by default.
	MaxConnsPerUser int

	// Receive calls a function that receives a message of a client. Close closes a connection
	// or a listener, and Refuse a connection that is not served, for the goroutine that accepts.
	// A client can send descriptors of sockets, which the kernel closes within these calls, and
	// that can take as long as the client has chosen (SO_LINGER). If clients are not to be
	// trusted, all three must interrupt the thread. By default, they do not.
	Receive func(call func())
	Close   func(io.Closer) error
	Refuse  func(io.Closer)
}

// A Server answers netlink requests with the data of a [Control]: it is the inverse of
// [Client]. It serves generic netlink (the controller, SMC_GEN_NETLINK and
// SMC_PNETID) and the SMC part of sock_diag over unix sequenced-packet sockets.
//
// The server does not close the Control.
type Server struct {
	ctl Control
	cfg ServerConfig

	ctx    context.Context // of all requests; ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // connections served

	mu        sync.Mutex
	closed    bool
	listeners map[*net.UnixListener]struct{}
	conns     map[*net.UnixConn]struct{} // also those that will be refused
	users     map[uint32]*user           // the users that have connections
	refusing  quota.Tally[uint32]        // their connections that wait to be refused
}

// user has the connections and answers of one user.
type user struct {
	conns   int
	answers chan struct{} // a place for each answer in progress; nil for root
}

// NewServer returns a server for ctl. It serves connections when Serve is called.
func NewServer(ctl Control, cfg ServerConfig) *Server {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	cfg.Logger = quota.LimitLog(cfg.Logger)
	if cfg.Guard == nil {
		cfg.Guard = &guard.Guard{Log: cfg.Logger}
	}
	if cfg.Authorize == nil {
		owner := uint32(os.Geteuid())
		cfg.Authorize = func(p Peer) bool { return p.UID == 0 || p.UID == owner }
	}
	if cfg.RequestTimeout <= 0 {
		cfg.RequestTimeout = defaultRequestTimeout
	}
	if cfg.AnswerTimeout <= 0 {
		cfg.AnswerTimeout = defaultAnswerTimeout
	}
	if cfg.MaxConnsPerUser <= 0 {
		cfg.MaxConnsPerUser = defaultMaxConnsPerUser
	}
	if cfg.Receive == nil {
		cfg.Receive = func(call func()) { call() }
	}
	if cfg.Close == nil {
		cfg.Close = func(c io.Closer) error { return c.Close() }
	}
	if cfg.Refuse == nil {
		cfg.Refuse = func(c io.Closer) { _ = c.Close() }
	}
	s := &Server{
		ctl:       ctl,
		cfg:       cfg,
		listeners: make(map[*net.UnixListener]struct{}),
		conns:     make(map[*net.UnixConn]struct{}),
		users:     make(map[uint32]*user),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Serve accepts and serves connections until the server or the listener is closed. It
// closes the listener. It returns nil if the server was closed.
func (s *Server) Serve(l *net.UnixListener) error {
	defer s.cfg.Close(l) //nolint:errcheck // it may be closed already
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
	}()

	if err := quota.Accept(s.ctx, l.AcceptUnix, s.accept, s.cfg.Logger); err != nil {
		return fmt.Errorf("nl: %w", err)
	}
	return nil
}

// accept serves a connection in a goroutine that Close waits for.
func (s *Server) accept(conn *net.UnixConn) {
	peer, err := peerOf(conn)
	if err != nil {
		s.cfg.Logger.Warn("cannot read the credentials of a control connection", "err", err)
		s.cfg.Refuse(conn)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		s.cfg.Refuse(conn)
		return
	}
	u, err := s.enter(peer.UID)
	if err != nil {
		s.cfg.Logger.Warn("control connection refused", "uid", peer.UID, "pid", peer.PID, "err", err)
		s.refuse(conn, peer, err)
		return
	}
	s.conns[conn] = struct{}{}
	s.wg.Go(func() {
		defer s.leave(conn, peer.UID)
		var err error
		if s.cfg.Guard.Do("a control connection", func() { err = s.serveConn(conn, peer, u) }) == nil && err != nil && s.ctx.Err() == nil {
			s.cfg.Logger.Debug("control connection ended", "uid", peer.UID, "pid", peer.PID, "err", err)
		}
	})
}

// enter counts a new connection of a user; leave must be called at its end. s.mu is held.
func (s *Server) enter(uid uint32) (*user, error) {
	uid = quota.Account(uid)
	u := s.users[uid]
	if u != nil && uid != 0 && u.conns >= s.cfg.MaxConnsPerUser {
		return nil, fmt.Errorf("user %d has %d of at most %d control connections: %w", uid, u.conns, s.cfg.MaxConnsPerUser, syscall.EUSERS)
	}
	if err := s.cfg.Quota.Take(uid, 1); err != nil {
		return nil, err
	}
	if u == nil {
		u = &user{}
		if uid != 0 {
			u.answers = make(chan struct{}, userAnswers)
		}
		s.users[uid] = u
	}
	u.conns++
	return u, nil
}

func (s *Server) leave(conn *net.UnixConn, uid uint32) {
	_ = s.cfg.Close(conn)
	uid = quota.Account(uid)
	s.cfg.Quota.Give(uid, 1)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
	if u := s.users[uid]; u.conns > 1 {
		u.conns--
	} else {
		delete(s.users, uid)
	}
}

// refuse answers the first request of a connection that is not served with the error
// why, if the request comes within refuseTime. s.mu is held.
func (s *Server) refuse(conn *net.UnixConn, peer Peer, why error) {
	uid := quota.Account(peer.UID)
	if !s.mayWait(uid) {
		s.cfg.Refuse(conn)
		return
	}
	s.refusing.Add(uid)
	s.conns[conn] = struct{}{}
	s.wg.Go(func() {
		defer func() {
			_ = s.cfg.Close(conn)
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.conns, conn)
			s.refusing.Remove(uid)
		}()
		if err := conn.SetDeadline(time.Now().Add(refuseTime)); err != nil {
			return
		}
		b, _, err := s.read(conn, make([]byte, maxAnswer), nil)
		if err != nil {
			return
		}
		_ = s.cfg.Guard.Do("the refusal of a control connection", func() {
			m, _, err := nextMessage(b)
			if err != nil {
				return
			}
			out := &replies{req: &request{peer: peer, Message: m}, send: func(b []byte) error { return writeDatagram(conn, b) }}
			out.fail(why)
			out.flush()
		})
	})
}

// mayWait reports whether a connection of a user may wait to be refused. s.mu is held.
func (s *Server) mayWait(uid uint32) bool { return s.refusing.Fair(uid, userRefusing, maxRefusing) }

func (s *Server) serveConn(conn *net.UnixConn, peer Peer, u *user) error {
	buf, control := make([]byte, maxDatagram), make([]byte, controlSize)
	for s.ctx.Err() == nil {
		if err := conn.SetReadDeadline(time.Now().Add(idleTimeout)); err != nil {
			return err
		}
		b, n, err := s.read(conn, buf, control)
		with := s.takeSockets(peer.UID, control[:n])
		if errors.Is(with.err, errDescriptors) {
			err = with.err
		}
		if err == nil {
			err = s.serveRequest(conn, peer, u, b, with)
		}
		s.dropSockets(peer.UID, with)
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// shut ends a connection that its goroutine may use. That goroutine closes it.
func shut(conn *net.UnixConn) {
	if rc, err := conn.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { _ = syscall.Shutdown(int(fd), syscall.SHUT_RDWR) })
	}
}

// read reads one packet of a client into b, and the control messages of its descriptors into the first bytes of control, also with an
// error. The errors are those of readDatagram, and that of a packet with more descriptors, which nobody sends who means well.
func (s *Server) read(conn *net.UnixConn, b, control []byte) (packetOf []byte, controls int, err error) {
	rc, err := conn.SyscallConn()
	if err != nil {
		return nil, 0, err
	}
	var n, flags int
	rerr := rc.Read(func(fd uintptr) bool {
		s.cfg.Receive(func() {
			err = retry.Interrupted(func() (err error) {
				n, controls, flags, _, err = syscall.Recvmsg(int(fd), b, control, syscall.MSG_DONTWAIT|syscall.MSG_CMSG_CLOEXEC)
				return err
			})
		})
		return err != syscall.EAGAIN
	})
	switch {
	case rerr != nil:
		return nil, 0, rerr
	case err != nil:
		return nil, 0, os.NewSyscallError("recvmsg", err)
	}
	packetOf, err = packet(b, n, flags)
	return packetOf, controls, err
}

// serveRequest answers one datagram. It waits if the user has too many answers in
// progress.
func (s *Server) serveRequest(conn *net.UnixConn, peer Peer, u *user, datagram []byte, with received) error {
	if u.answers != nil {
		select {
		case u.answers <- struct{}{}:
			defer func() { <-u.answers }()
		case <-s.ctx.Done():
			return nil
		}
	}
	// The data of a table stays in memory until the whole table is sent.
	var end time.Time
	return s.handle(s.ctx, peer, datagram, with, func(b []byte) error {
		now := time.Now()
		if end.IsZero() {
			end = now.Add(s.cfg.AnswerTimeout)
		}
		limit := now.Add(sendTimeout)
		if end.Before(limit) {
			limit = end
		}
		if err := conn.SetWriteDeadline(limit); err != nil {
			return err
		}
		return writeDatagram(conn, b)
	})
}

// Handle answers the requests of one datagram. It calls send with each datagram of the
// answer, and stops when send fails. It returns an error if the datagram is malformed or
// send fails. A request that fails is answered with an error message.
func (s *Server) Handle(ctx context.Context, peer Peer, datagram []byte, send func([]byte) error) error {
	return s.handle(ctx, peer, datagram, received{}, send)
}

// handle is Handle of a datagram that descriptors have come with.
func (s *Server) handle(ctx context.Context, peer Peer, datagram []byte, with received, send func([]byte) error) error {
	msgs, err := splitMessages(datagram)
	if err != nil {
		return err
	}
	for _, m := range msgs {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
		err := s.answer(ctx, peer, m, with, send)
		cancel()
		if err != nil {
			return fmt.Errorf("nl: answer: %w", err)
		}
	}
	return nil
}

// Close closes the listeners and all connections, and waits for the requests in progress.
// It does not close the Control.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.cancel()
	for l := range s.listeners {
		_ = s.cfg.Close(l)
	}
	for c := range s.conns {
		shut(c)
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}
