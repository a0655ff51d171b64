// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack"
	"smcr/userstack/broker"
	"smcr/userstack/internal/bounded"
	"smcr/userstack/internal/inside"
	"smcr/userstack/internal/programs"
	"smcr/userstack/internal/sockopt"
	"smcr/userstack/relay"
)

var _ broker.Handler = (*Service)(nil)

// reasonLeft is the reason of an accepted connection that its client reset before
// the service examined it.
const reasonLeft = "the client disconnected during the handshake"

// errEnds means that the service is about to end and does not start connections over
// SMC any more: they would be reset at once.
var errEnds error = &userstack.DeclineError{Code: userstack.ReasonNoDevice, Err: errors.New("the stack ends")}

// held is what the service stores for a program's connection.
type held struct {
	sock    *broker.Descriptor // the TCP socket, for its options
	linger0 atomic.Bool

	mu       sync.Mutex      // held during a change of options
	smc      *userstack.Conn // nil: none yet
	carriage inside.Carriage // of smc
	keep     keepAlive
	side     *localSide // of a local connection, or nil
}

// hold makes the program's options take effect on sock from now on. minKeepAlive is that of
// Config.
func hold(c *broker.Conn, sock *broker.Descriptor, minKeepAlive time.Duration) *held {
	if h, ok := c.Data().(*held); ok {
		return h
	}
	h := &held{sock: sock, keep: keepAlive{least: seconds(minKeepAlive)}}
	c.SetData(h)
	return h
}

// Listen implements broker.Handler.
func (s *Service) Listen(_ context.Context, l *broker.Launcher, sock *broker.Descriptor) error {
	return sock.Control(func(fd int) error {
		if err := s.checkSocket(fd, toListen); err != nil {
			return err
		}
		s.sockets.listeners.renewed()
		undo, err := s.sockets.listeners.add(l, fd)
		if err != nil {
			return err
		}
		if err := s.programs.MarkListen(ownerOf(l), fd); err != nil {
			undo()
			return err
		}
		s.programs.Listens(ownerOf(l), fd)
		if s.joinsListener(l, fd) {
			s.local.listens(fd, l.UID)
		}
		return nil
	})
}

// Connect implements broker.Handler.
func (s *Service) Connect(ctx context.Context, c *broker.Conn, sock *broker.Descriptor, req broker.ConnectRequest) {
	goesOn := false
	defer func() {
		if !goesOn {
			_ = sock.Close()
		}
	}()
	if s.ending.Err() != nil {
		_ = c.NotCandidate(errEnds.Error())
		return
	}
	log := s.log.With("remote", req.Remote, "launcher", c.Launcher().PID)
	var local netip.AddrPort
	release := func() {}
	defer func() { release() }()
	var here *localConn // nil: to another host
	err := sock.Control(func(fd int) (err error) {
		if err = s.checkSocket(fd, toConnect); err != nil {
			return err
		}
		if release, err = s.sockets.claims.take(fd); err != nil {
			return err
		}
		if err = s.programs.Copies(c.Launcher().UID, req.Remote); err != nil {
			return err
		}
		local, err = socketAddr(bounded.Sockname(fd))
		if err != nil {
			return err
		}
		if !s.joins(c.Launcher(), req.Remote) {
			return s.apart(c, fd, local.Addr(), req.Remote)
		}
		here, err = s.candidate(c, sock, fd, local.Addr(), req.Remote)
		return err
	})
	if err != nil {
		s.staysTCP(c, sock, true, err)
		_ = sock.Close() // before the program can close its own
		_ = c.NotCandidate(err.Error())
		return
	}
	if here != nil {
		defer s.local.finish(here, outcomeClosed) // unless it has
	}
	if err := s.connectTCP(ctx, sock, local, req.Remote); err != nil {
		s.withdraw(sock) // before the launcher may use the socket
		if ending(ctx) {
			return
		}
		_ = sock.Close() // it would keep the port in use
		_ = c.Failed(errnoOf(err), err.Error())
		return
	}
	smc := false
	if err := sock.Control(func(fd int) (err error) {
		if smc, err = s.programs.PeerAnnounced(fd, req.Remote.Addr()); smc && here != nil {
			err = s.programs.OpenHere(fd)
		}
		return err
	}); errors.Is(err, programs.ErrNotHere) {
		s.anew(c, sock, here)
		return
	} else if err != nil {
		// The peer may wait for CLC messages, or for data.
		_ = c.Failed(syscall.ECONNABORTED, err.Error())
		return
	}
	if here != nil && (smc || s.local.claimed(here)) {
		goesOn = s.connectLocal(ctx, c, sock, here)
		return
	}
	if !smc {
		if here != nil {
			s.local.finish(here, outcomeTCP)
		}
		var copies error
		_ = sock.Control(func(fd int) error {
			copies = s.programs.Copied(fd, req.Remote)
			return nil
		})
		s.staysTCP(c, sock, true, cmp.Or(copies, s.programs.NoSMC()))
		_ = sock.Close() // the program's close must be the last one
		if copies != nil {
			_ = c.EstablishedTCP(copies.Error())
			return
		}
		_ = c.Established(ctx, false)
		return
	}
	h := hold(c, sock, s.cfg.MinKeepAlive)
	if err := c.Established(ctx, true); err != nil {
		return
	}
	tcp, restore, err := h.takeTCP()
	if err != nil {
		_ = c.Failed(lostErrno(err), err.Error())
		return
	}
	conn, err := s.stack.Client(inside.WithOwner(ctx, ownerOf(c.Launcher())), tcp)
	var d *userstack.DeclineError
	switch {
	case err == nil:
		goesOn = s.carry(ctx, c, sock, conn)
	case errors.As(err, &d):
		log.Debug("connection stays TCP", "err", err)
		s.staysTCP(c, sock, true, d)
		s.backToTCP(ctx, c, sock, tcp, restore, d)
	case ending(ctx):
		restore()
		_ = tcp.Close()
	case again(s, c, sock, req.Remote, tcp, restore, err):
		log.Info("connection made again over TCP", "err", err)
	default:
		log.Info("rendezvous failed", "err", err)
		_ = tcp.SetLinger(0)
		_ = tcp.Close()
		_ = c.Failed(lostErrno(err), err.Error())
	}
}

// portWait limits the wait for the end of an earlier connection with the same addresses.
const portWait = 500 * time.Millisecond

// connectTCP connects sock, which is bound to local. A program that has bound it to a port may
// have closed an earlier connection with the same addresses just now. Over TCP, that one is gone
// if the peer has closed first. Over SMC-R, the TCP connection below ends only when the stacks
// have told each other of the end, so connectTCP waits for that.
func (s *Service) connectTCP(ctx context.Context, sock *broker.Descriptor, local, remote netip.AddrPort) error {
	begin := time.Now()
	for pause := time.Millisecond; ; pause *= 2 {
		err := s.connector.Connect(ctx, sock, remote)
		if local.Port() == 0 || !errors.Is(err, syscall.EADDRNOTAVAIL) || time.Since(begin)+pause > portWait {
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return err
		}
	}
}

// withdraw takes the mark off a socket whose connection was not made.
func (s *Service) withdraw(sock *broker.Descriptor) {
	if err := sock.Control(s.programs.Withdraw); err != nil {
		s.log.Warn("cannot take the mark off a socket", "err", err)
	}
}

// ending reports whether the service itself ends. If a connection is not complete by
// then, the service leaves it to the launcher, which makes it over TCP.
func ending(ctx context.Context) bool {
	return errors.Is(context.Cause(ctx), context.Canceled)
}

// carry relays a program's connection over SMC-R. See Service.relay for goesOn.
func (s *Service) carry(ctx context.Context, c *broker.Conn, sock *broker.Descriptor, conn *userstack.Conn) (goesOn bool) {
	end, err := c.Ready(ctx, broker.ModeSMCR, "")
	if err != nil {
		_ = conn.Abort()
		return false
	}
	return s.relay(ctx, c, sock, end, conn)
}

// staysTCP counts and lists a connection that is TCP.
func (s *Service) staysTCP(c *broker.Conn, sock *broker.Descriptor, client bool, why error) {
	_ = sock.Control(func(fd int) error { // fails if the connection has ended
		c.SetReason(s.programs.StaysTCP(ownerOf(c.Launcher()), fd, client, why))
		return nil
	})
}

// backToTCP returns the socket to the program, or relays its connection if the
// program already has a socketpair.
func (s *Service) backToTCP(ctx context.Context, c *broker.Conn, sock *broker.Descriptor, tcp *sharedTCP, restore func(), d *userstack.DeclineError) {
	// The program's socket must have the same blocking mode as before.
	restore()
	end, err := c.Ready(ctx, broker.ModeTCP, d.Error())
	if err != nil || end == nil {
		_ = tcp.Close()
		return
	}
	_ = sock.Control(func(fd int) error { return unix.SetNonblock(fd, true) })
	s.relayTCP(ctx, c, sock, end, tcp)
}

// relayTCP relays a connection that stays TCP to a program that has a socketpair.
func (s *Service) relayTCP(ctx context.Context, c *broker.Conn, sock, end *broker.Descriptor, tcp *sharedTCP) {
	n, err := relay.NewTCP(tcp)
	if err != nil {
		s.log.Error("cannot relay a connection", "err", err)
		c.SetCloseReason(err.Error())
		_ = tcp.Abort()
		dropEnd(end)
		return
	}
	s.relay(ctx, c, sock, end, n)
}

// Accept implements broker.Handler.
func (s *Service) Accept(ctx context.Context, c *broker.Conn, sock *broker.Descriptor) {
	if s.ending.Err() != nil {
		s.Decline(ctx, c, sock, errEnds)
		return
	}
	goesOn := false
	defer func() {
		if !goesOn {
			_ = sock.Close()
		}
	}()
	var remote netip.AddrPort
	smc := false
	var unknown error
	release := func() {}
	defer func() { release() }()
	var here *localConn // nil: from another host
	err := sock.Control(func(fd int) (err error) {
		if err = s.checkSocket(fd, isAccepted); err != nil {
			return err
		}
		if release, err = s.sockets.claims.take(fd); err != nil {
			return err
		}
		if here, err = s.local.claim(fd, s.acceptor(c.Launcher(), fd)); err != nil {
			return errors.Join(err, s.programs.OpenHere(fd)) // the program uses it as TCP now
		}
		if here != nil {
			return s.programs.OpenHere(fd)
		}
		if local, lerr := socketAddr(bounded.Sockname(fd)); lerr == nil {
			s.sockets.listeners.asked(c.Launcher(), local.Port())
		}
		if remote, err = socketAddr(bounded.Peername(fd)); err == nil {
			smc, unknown = s.programs.PeerAnnounced(fd, remote.Addr())
		}
		return err
	})
	switch {
	case here != nil:
		goesOn = s.acceptLocal(ctx, c, sock, here)
		return
	case errors.Is(err, unix.ENOTCONN):
		_ = sock.Close() // the program's close must be the last one
		_ = c.NotCandidate(reasonLeft)
		return
	case err != nil:
		_ = sock.Close()
		_ = c.NotCandidate(err.Error())
		return
	case unknown != nil:
		// The peer may wait for CLC messages, or for data. The launcher closes a
		// connection for which it gets no answer.
		s.log.Warn("connection dropped: cannot tell whether the peer announced SMC", "remote", remote, "err", unknown)
		return
	case !smc:
		s.staysTCP(c, sock, false, s.programs.NoSMC())
		_ = sock.Close()
		_ = c.NotCandidate(userstack.ReasonPeerNoSMC.Text())
		return
	}
	log := s.log.With("remote", remote, "launcher", c.Launcher().PID)
	h := hold(c, sock, s.cfg.MinKeepAlive)
	tcp, restore, err := h.takeTCP()
	if err != nil {
		return
	}
	var end *broker.Descriptor
	asked := false // for the end of the program
	conn, err := s.programs.Serve(inside.WithOwner(ctx, ownerOf(c.Launcher())), tcp, func() (err error) {
		asked = true
		end, err = c.TakeOver(ctx)
		return err
	})
	var d *userstack.DeclineError
	switch {
	case err == nil:
		if _, err := c.Ready(ctx, broker.ModeSMCR, ""); err != nil {
			_ = conn.Abort()
			dropEnd(end)
			return
		}
		goesOn = s.relay(ctx, c, sock, end, conn)
	case errors.As(err, &d):
		log.Debug("connection stays TCP", "err", err)
		s.staysTCP(c, sock, false, d)
		if !asked {
			restore()
			_ = tcp.Close()
			_ = sock.Close()
			_ = c.Declined(d.Error())
			return
		}
		if _, err := c.Ready(ctx, broker.ModeTCP, d.Error()); err != nil {
			_ = tcp.Abort()
			dropEnd(end)
			return
		}
		s.relayTCP(ctx, c, sock, end, tcp)
	case ending(ctx):
		restore()
		_ = tcp.Close()
		dropEnd(end)
	default:
		log.Info("rendezvous failed", "err", err)
		_ = tcp.Abort()
		if !asked {
			_ = c.Failed(lostErrno(err), err.Error())
			return
		}
		if end == nil {
			return // the launcher has not taken part
		}
		c.SetCloseReason(err.Error())
		_ = c.Broken(ctx, syscall.ECONNRESET)
		dropEnd(end)
	}
}

// dropEnd closes the service's end of a pair, which may be nil. The service has never read
// from it.
func dropEnd(end *broker.Descriptor) {
	if end == nil {
		return
	}
	_ = end.Control(broker.MarkUnread)
	_ = end.Close()
}

// lingerOf returns SO_LINGER's seconds, -1 if it is off.
func lingerOf(sock *broker.Descriptor) (int, error) {
	v, err := sockopt.Get(sock, unix.SOL_SOCKET, unix.SO_LINGER, 8)
	if err != nil || len(v) < 8 {
		return -1, err
	}
	if binary.NativeEndian.Uint32(v) == 0 {
		return -1, nil
	}
	return int(int32(binary.NativeEndian.Uint32(v[4:]))), nil
}

// socketAddr converts the answer of getsockname and getpeername.
func socketAddr(sa unix.Sockaddr, err error) (netip.AddrPort, error) {
	if err != nil {
		return netip.AddrPort{}, err
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)), nil
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port)), nil
	default:
		return netip.AddrPort{}, syscall.EAFNOSUPPORT
	}
}

// errnoOf returns the error that connect() must report for err, with which the kernel has not
// made a connection.
func errnoOf(err error) syscall.Errno {
	var e syscall.Errno
	switch {
	case errors.As(err, &e) && e != 0:
		return e
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return syscall.ETIMEDOUT
	default:
		return syscall.ECONNRESET
	}
}

// lostErrno returns the error that connect() must report for err, with which a rendezvous on an
// established TCP connection has ended: one that the kernel has for a connection that is lost.
// Others, such as EPIPE and ENOTCONN after a reset, belong to calls of the service.
func lostErrno(err error) syscall.Errno {
	switch e := errnoOf(err); e {
	case syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH:
		return e
	default:
		return syscall.ECONNRESET
	}
}

func ownerOf(l *broker.Launcher) inside.Owner {
	program, _, _ := strings.Cut(l.Command, " ")
	return inside.Owner{UID: l.UID, PID: uint32(l.PID), Command: filepath.Base(program)}
}
