// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// Dial connects to address as net.Dial does and moves the connection to
// SMC-R if the peer speaks it. network is "tcp", "tcp4" or "tcp6".
//
// The result is a *Conn, or a *net.TCPConn where SMC-R cannot be used.
func (s *Stack) Dial(network, address string) (net.Conn, error) {
	return s.DialContext(context.Background(), network, address)
}

// DialContext is Dial under a context, which bounds the TCP connection and
// the rendezvous and means nothing once DialContext has returned.
func (s *Stack) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	switch network {
	case "tcp", "tcp4", "tcp6":
	default:
		return nil, &net.OpError{Op: "dial", Net: network, Err: net.UnknownNetworkError(network)}
	}
	if s.ctx.Err() != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: ErrStackClosed}
	}
	var unmarked atomic.Pointer[error] // several addresses may be tried at once
	d := net.Dialer{Control: func(_, _ string, rc syscall.RawConn) error {
		if s.option == nil {
			return nil
		}
		return rc.Control(func(fd uintptr) {
			// Unmarked, the connection is plain TCP: no reason to fail.
			if err := s.option.MarkConnect(int(fd)); err != nil {
				s.log.Warn("cannot announce SMC", "address", address, "err", err)
				unmarked.Store(&err)
			}
		})
	}}
	d.SetMultipathTCP(false)
	nc, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	tcp := nc.(*net.TCPConn)
	smc, err := s.peerSMC(tcp)
	if err == nil && !smc {
		why := s.NoSMC()
		if e := unmarked.Load(); e != nil {
			why = *e
		}
		s.staysTCP(tcp, true, why)
		return tcp, nil
	}
	var c *Conn
	if err == nil {
		c, err = s.Client(ctx, tcp)
	}
	return s.settle("dial", tcp, c, err)
}

// settle turns the outcome of a rendezvous into a net.Conn: SMC-R, TCP after
// a decline, or an error.
func (s *Stack) settle(op string, tcp *net.TCPConn, c *Conn, err error) (net.Conn, error) {
	if err == nil {
		return c, nil
	}
	var d *DeclineError
	if errors.As(err, &d) {
		s.log.Debug("connection stays TCP", "remote", tcp.RemoteAddr(), "err", err)
		s.staysTCP(tcp, op == "dial", err)
		return tcp, nil
	}
	_ = tcp.SetLinger(0)
	_ = tcp.Close()
	return nil, &net.OpError{Op: op, Net: "tcp", Source: tcp.LocalAddr(), Addr: tcp.RemoteAddr(), Err: err}
}

// peerSMC reports whether the peer of an established connection announced SMC,
// or is assumed to speak it. After an error nobody can tell whether the peer
// waits for CLC messages or for data: the connection is of no use.
func (s *Stack) peerSMC(tcp *net.TCPConn) (smc bool, err error) {
	if s.option == nil {
		return s.Assumed(addrPort(tcp.RemoteAddr()).Addr()), nil
	}
	rc, err := tcp.SyscallConn()
	if err != nil {
		return false, err
	}
	if cerr := rc.Control(func(fd uintptr) { smc, err = s.option.PeerSMC(int(fd)) }); cerr != nil {
		return false, cerr
	}
	return smc, err
}

// Listen announces on address as net.Listen does. The listener's Accept
// gives *Conn for peers that speak SMC-R and *net.TCPConn for others.
func (s *Stack) Listen(network, address string) (net.Listener, error) {
	switch network {
	case "tcp", "tcp4", "tcp6":
	default:
		return nil, &net.OpError{Op: "listen", Net: network, Err: net.UnknownNetworkError(network)}
	}
	if s.ctx.Err() != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: ErrStackClosed}
	}
	lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) error {
		if s.option == nil {
			return nil
		}
		var merr error
		if err := rc.Control(func(fd uintptr) { merr = s.option.MarkListen(int(fd)) }); err != nil {
			return err
		}
		if merr != nil {
			return fmt.Errorf("userstack: announce SMC on the listener: %w", merr)
		}
		return nil
	}}
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), network, address)
	if err != nil {
		return nil, err
	}
	sl := &listener{s: s, tcp: l.(*net.TCPListener), out: make(chan accepted), done: make(chan struct{})}
	sl.stop = context.AfterFunc(s.ctx, func() { _ = sl.Close() })
	s.mu.Lock()
	if s.listeners == nil {
		s.listeners = map[*listener]struct{}{}
	}
	s.listeners[sl] = struct{}{}
	s.mu.Unlock()
	s.wg.Add(1)
	go sl.run()
	return sl, nil
}

// listener accepts TCP connections and hands them out once their rendezvous
// is over, so that a slow peer does not hold up others.
type listener struct {
	s    *Stack
	tcp  *net.TCPListener
	out  chan accepted
	done chan struct{} // closed by Close
	stop func() bool
}

type accepted struct {
	c   net.Conn
	err error
}

func (l *listener) run() {
	defer l.s.wg.Done()
	for {
		tcp, err := l.tcp.AcceptTCP()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			l.give(nil, err)
			select {
			case <-l.done:
				return
			case <-time.After(5 * time.Millisecond): // out of descriptors, say
			}
			continue
		}
		l.s.wg.Add(1)
		go func() {
			defer l.s.wg.Done()
			l.serve(tcp)
		}()
	}
}

// serve runs the rendezvous of an accepted connection and gives it out.
func (l *listener) serve(tcp *net.TCPConn) {
	s := l.s
	smc, err := s.peerSMC(tcp)
	if err == nil && (!smc || s.option == nil && !looksLikeCLC(tcp)) {
		s.staysTCP(tcp, false, s.NoSMC())
		l.give(tcp, nil)
		return
	}
	var c *Conn
	if err == nil {
		c, err = s.Server(s.ctx, tcp)
	}
	nc, err := s.settle("accept", tcp, c, err)
	if err != nil {
		// The peer went away or broke the protocol: nobody to give.
		s.log.Info("rendezvous failed", "remote", tcp.RemoteAddr(), "err", err)
		return
	}
	l.give(nc, nil)
}

// give hands c to Accept, or closes it with the listener.
func (l *listener) give(c net.Conn, err error) {
	select {
	case l.out <- accepted{c, err}:
	case <-l.done:
		if c != nil {
			_ = c.Close()
		}
	}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case a := <-l.out:
		return a.c, a.err
	case <-l.done:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: net.ErrClosed}
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.s.mu.Lock()
	_, open := l.s.listeners[l]
	delete(l.s.listeners, l)
	l.s.mu.Unlock()
	if !open {
		return &net.OpError{Op: "close", Net: "tcp", Addr: l.Addr(), Err: net.ErrClosed}
	}
	l.stop()
	close(l.done)
	return l.tcp.Close()
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.tcp.Addr() }
