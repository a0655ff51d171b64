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
	"time"
)

// Limits of a server.
const (
	defaultRequestTimeout  = 10 * time.Second
	defaultMaxConnsPerUser = 64
	idleTimeout            = 5 * time.Minute
	sendTimeout            = 5 * time.Second
)

// A ServerConfig adjusts a [Server]. Its zero value is good.
type ServerConfig struct {
	// Logger receives what the server does and refuses. The default discards.
	Logger *slog.Logger

	// Authorize reports whether a peer may change the state of the stack;
	// reading is for everybody. By default root may, and the user the
	// server runs as.
	Authorize func(Peer) bool

	// RequestTimeout bounds the time the Control may take to answer, 10 s
	// by default.
	RequestTimeout time.Duration

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

	mu        sync.Mutex
	closed    bool
	listeners map[*net.UnixListener]struct{}
	conns     map[*net.UnixConn]Peer
}

// NewServer returns a server for ctl that serves nobody yet.
func NewServer(ctl Control, cfg ServerConfig) *Server {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Authorize == nil {
		owner := uint32(os.Geteuid())
		cfg.Authorize = func(p Peer) bool { return p.UID == 0 || p.UID == owner }
	}
	if cfg.RequestTimeout <= 0 {
		cfg.RequestTimeout = defaultRequestTimeout
	}
	if cfg.MaxConnsPerUser <= 0 {
		cfg.MaxConnsPerUser = defaultMaxConnsPerUser
	}
	s := &Server{
		ctl:       ctl,
		cfg:       cfg,
		listeners: make(map[*net.UnixListener]struct{}),
		conns:     make(map[*net.UnixConn]Peer),
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

	for {
		conn, err := l.AcceptUnix()
		switch {
		case err == nil:
			s.accept(conn)
		case s.ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default:
			// Out of descriptors, mostly: those in use are freed again.
			s.cfg.Logger.Warn("cannot accept a control connection", "err", err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-s.ctx.Done():
				return nil
			}
		}
	}
}

// accept serves a connection in a goroutine that Close waits for.
func (s *Server) accept(conn *net.UnixConn) {
	peer, err := peerOf(conn)
	if err != nil {
		s.cfg.Logger.Warn("cannot read the credentials of a control connection", "err", err)
		conn.Close()
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, p := range s.conns {
		if p.UID == peer.UID {
			n++
		}
	}
	if s.closed || peer.UID != 0 && n >= s.cfg.MaxConnsPerUser {
		s.cfg.Logger.Warn("control connection refused", "uid", peer.UID, "pid", peer.PID, "connections", n)
		conn.Close()
		return
	}
	s.conns[conn] = peer
	s.wg.Go(func() {
		defer func() {
			conn.Close()
			s.mu.Lock()
			delete(s.conns, conn)
			s.mu.Unlock()
		}()
		if err := s.serveConn(conn, peer); err != nil && s.ctx.Err() == nil {
			s.cfg.Logger.Debug("control connection ended", "uid", peer.UID, "pid", peer.PID, "err", err)
		}
	})
}

func (s *Server) serveConn(conn *net.UnixConn, peer Peer) error {
	buf := make([]byte, maxDatagram)
	send := func(b []byte) error {
		if err := conn.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
			return err
		}
		_, err := conn.Write(b)
		return err
	}
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
		if err := s.Handle(s.ctx, peer, b, send); err != nil {
			return err
		}
	}
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
