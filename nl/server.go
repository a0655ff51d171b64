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
	// maxRefusing bounds the connections that wait, for refuseTime at most, for the
	// question that a refusal can answer. Those beyond are closed without a word.
	maxRefusing = 8
	refuseTime  = time.Second
)

// A ServerConfig adjusts a [Server]. Its zero value is good.
type ServerConfig struct {
	// Logger receives what the server does and refuses. The default discards.
	Logger *slog.Logger

	// Guard is told of panics, each of which ends the connection of one client.
	// By default that is Logger alone.
	Guard *guard.Guard

	// Authorize reports whether a peer may change the state of the stack;
	// reading is for everybody. By default root may, and the user the
	// server runs as.
	Authorize func(Peer) bool

	// RequestTimeout bounds the time the Control may take to answer, 10 s
	// by default.
	RequestTimeout time.Duration

	// AnswerTimeout bounds the time a peer may take to read the answer to one
	// datagram, however large, 30 s by default.
	AnswerTimeout time.Duration

	// Quota is what users may take of this process's descriptors: each
	// connection is one. Nil is no limit.
	Quota *quota.Budget

	// MaxConnsPerUser bounds the connections of each user but root, 64 by
	// default, so that one user cannot lock out the others.
	MaxConnsPerUser int
}

// A Server answers netlink requests out of a [Control]: it is the inverse of
// [Client]. It serves generic netlink (the controller, SMC_GEN_NETLINK and
// SMC_PNETID) and the SMC part of sock_diag over unix sequenced-packet sockets.
//
// The caller keeps the Control and closes it after the server.
type Server struct {
	ctl Control
	cfg ServerConfig

	ctx    context.Context // of all requests; ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup // connections served

	warnings *quota.Log
	refusing chan struct{} // a place for each connection that waits to be refused

	mu        sync.Mutex
	closed    bool
	listeners map[*net.UnixListener]struct{}
	conns     map[*net.UnixConn]struct{} // those of refusals, too
	users     map[uint32]*user           // who have connections
}

// user is one user's part in the server.
type user struct {
	conns   int
	answers chan struct{} // a place for each answer in progress; nil for root
}

// NewServer returns a server for ctl that serves nobody yet.
func NewServer(ctl Control, cfg ServerConfig) *Server {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
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
	s := &Server{
		ctl:       ctl,
		cfg:       cfg,
		listeners: make(map[*net.UnixListener]struct{}),
		conns:     make(map[*net.UnixConn]struct{}),
		users:     make(map[uint32]*user),
		warnings:  quota.NewLog(cfg.Logger),
		refusing:  make(chan struct{}, maxRefusing),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Serve accepts and serves connections until the server or the listener is
// closed; it closes the listener. It returns nil once the server is closed.
func (s *Server) Serve(l *net.UnixListener) error {
	defer l.Close()
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

	if err := quota.Accept(s.ctx, l.AcceptUnix, s.accept, s.warnings); err != nil {
		return fmt.Errorf("nl: %w", err)
	}
	return nil
}

// accept serves a connection in a goroutine that Close waits for.
func (s *Server) accept(conn *net.UnixConn) {
	peer, err := peerOf(conn)
	if err != nil {
		s.warnings.Warn("cannot read the credentials of a control connection", "err", err)
		conn.Close()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.Close()
		return
	}
	u, err := s.enter(peer.UID)
	if err != nil {
		s.warnings.Warn("control connection refused", "uid", peer.UID, "pid", peer.PID, "err", err)
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

// enter counts a connection of a user until leave. s.mu is held.
func (s *Server) enter(uid uint32) (*user, error) {
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
	conn.Close()
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

// refuse answers the first question of a connection that cannot be served by why,
// if it comes soon. s.mu is held.
func (s *Server) refuse(conn *net.UnixConn, peer Peer, why error) {
	select {
	case s.refusing <- struct{}{}:
	default:
		conn.Close()
		return
	}
	s.conns[conn] = struct{}{}
	s.wg.Go(func() {
		defer func() {
			conn.Close()
			s.mu.Lock()
			delete(s.conns, conn)
			s.mu.Unlock()
			<-s.refusing
		}()
		if err := conn.SetDeadline(time.Now().Add(refuseTime)); err != nil {
			return
		}
		b, err := readDatagram(conn, make([]byte, maxAnswer))
		if err != nil {
			return
		}
		m, _, err := nextMessage(b)
		if err != nil {
			return
		}
		out := &replies{req: &request{peer: peer, Message: m}, send: func(b []byte) error {
			_, err := conn.Write(b)
			return err
		}}
		out.fail(why)
		out.flush()
	})
}

func (s *Server) serveConn(conn *net.UnixConn, peer Peer, u *user) error {
	buf := make([]byte, maxDatagram)
	for {
		if err := conn.SetReadDeadline(time.Now().Add(idleTimeout)); err != nil {
			return err
		}
		b, err := readDatagram(conn, buf)
		if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := s.serveRequest(conn, peer, u, b); err != nil {
			return err
		}
	}
}

// serveRequest answers one datagram when it is the user's turn.
func (s *Server) serveRequest(conn *net.UnixConn, peer Peer, u *user, datagram []byte) error {
	if u.answers != nil {
		select {
		case u.answers <- struct{}{}:
			defer func() { <-u.answers }()
		case <-s.ctx.Done():
			return nil
		}
	}
	// What a table is read from stays in memory for as long as this takes.
	var end time.Time
	return s.Handle(s.ctx, peer, datagram, func(b []byte) error {
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
		_, err := conn.Write(b)
		return err
	})
}

// Handle answers the requests of one datagram: it calls send with each datagram
// of the answer, and not again after send fails. It returns an error when the
// datagram is malformed or send fails; a request that cannot be satisfied is
// answered with an error message instead.
func (s *Server) Handle(ctx context.Context, peer Peer, datagram []byte, send func([]byte) error) error {
	msgs, err := splitMessages(datagram)
	if err != nil {
		return err
	}
	for _, m := range msgs {
		ctx, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
		err := s.answer(ctx, peer, m, send)
		cancel()
		if err != nil {
			return fmt.Errorf("nl: answer: %w", err)
		}
	}
	return nil
}

// Close stops listening, ends all connections and waits for the requests in
// progress. The Control stays open.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.cancel()
	for l := range s.listeners {
		l.Close()
	}
	for c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
	return nil
}
