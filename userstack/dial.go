// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"smcr/userstack/rendezvous"
)

// Dial connects to address as net.Dial does and moves the connection to
// SMC-R if the peer speaks it. network is "tcp", "tcp4" or "tcp6".
//
// The result is a *Conn, or a *net.TCPConn where SMC-R cannot be used.
func (s *Stack) Dial(network, address string) (net.Conn, error) {
	return s.DialContext(context.Background(), network, address)
}

// DialContext is Dial under a context, which bounds the TCP connection and
// the rendezvous and means nothing once DialContext has returned. A [Dialer]
// has more to choose.
func (s *Stack) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return (&Dialer{Stack: s}).DialContext(ctx, network, address)
}

// Listen announces on address as net.Listen does. The listener's Accept
// gives *Conn for peers that speak SMC-R and *net.TCPConn for others. A
// [ListenConfig] has more to choose.
func (s *Stack) Listen(network, address string) (net.Listener, error) {
	return (&ListenConfig{Stack: s}).Listen(context.Background(), network, address)
}

// A ListenConfig makes listeners of a [Stack]. It is to [Stack.Listen] what
// net.ListenConfig is to net.Listen. It is safe for concurrent use as long as
// nobody changes it.
type ListenConfig struct {
	// Stack moves the accepted connections to SMC-R. It must not be nil.
	Stack *Stack
	// NetListenConfig makes the TCP listeners. Nil means the zero
	// net.ListenConfig. Multipath TCP is always off, because its sockets cannot
	// carry the TCP option of SMC.
	NetListenConfig *net.ListenConfig
	// RequireSMC makes the listener reset the connections that would stay TCP:
	// Accept gives *Conn alone. It is not Accept that fails, so that nobody who
	// connects by plain TCP holds up a server; Declined is told.
	RequireSMC bool
	// Declined, if not nil, is told of each connection that would stay TCP, and
	// why, before Accept gives it out. It is called by several goroutines at
	// once, and holds up only the connection that it is called for.
	Declined func(remote net.Addr, why *DeclineError)
}

// Listen announces on address. See [Stack.Listen]. ctx bounds the resolution of
// the address alone.
func (lc *ListenConfig) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	s := lc.Stack
	if err := s.canOpen("listen", network); err != nil {
		return nil, err
	}
	var nlc net.ListenConfig
	if lc.NetListenConfig != nil {
		nlc = *lc.NetListenConfig
	}
	own := nlc.Control
	nlc.Control = func(network, address string, rc syscall.RawConn) error {
		if own != nil {
			if err := own(network, address, rc); err != nil {
				return err
			}
		}
		if s.opt.marker == nil {
			return nil
		}
		var merr error
		if err := rc.Control(func(fd uintptr) { merr = s.opt.marker.MarkListen(int(fd)) }); err != nil {
			return err
		}
		if merr != nil {
			return fmt.Errorf("userstack: announce SMC on the listener: %w", merr)
		}
		return nil
	}
	nlc.SetMultipathTCP(false)
	l, err := nlc.Listen(ctx, network, address)
	if err != nil {
		return nil, err
	}
	sl := &listener{s: s, plain: plainTCP{require: lc.RequireSMC, declined: lc.Declined}, tcp: l.(*net.TCPListener), out: make(chan accepted), done: make(chan struct{})}
	sl.stop = context.AfterFunc(s.ctx, func() { _ = sl.Close() })
	s.reg.mu.Lock()
	s.reg.listeners[sl] = struct{}{}
	s.reg.mu.Unlock()
	s.reg.wg.Add(1)
	go sl.run()
	return sl, nil
}

// listener accepts TCP connections and hands them out once their rendezvous
// is over, so that a slow peer does not hold up others.
type listener struct {
	s     *Stack
	plain plainTCP
	tcp   *net.TCPListener
	out   chan accepted
	done  chan struct{} // closed by Close
	stop  func() bool
}

type accepted struct {
	c   net.Conn
	err error
}

func (l *listener) run() {
	defer l.s.reg.wg.Done()
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
		l.s.reg.wg.Add(1)
		go func() {
			defer l.s.reg.wg.Done()
			if l.s.guard.Do("an accepted connection", func() { l.serve(tcp) }) != nil {
				_ = tcp.SetLinger(0)
				_ = tcp.Close()
			}
		}()
	}
}

// serve runs the rendezvous of an accepted connection and gives it out.
func (l *listener) serve(tcp *net.TCPConn) {
	s := l.s
	smc, err := s.peerSMC(tcp)
	var c *Conn
	switch {
	case err != nil:
	case !smc:
		err = s.opt.notAnnounced()
	case s.opt.marker == nil:
		why := s.opt.notAnnounced()
		c, err = s.serverLook(s.ctx, tcp, rendezvous.Refusal{Code: why.Code, Err: why.Err}, nil)
	default:
		c, err = s.Server(s.ctx, tcp)
	}
	nc, err := s.connOrTCP("accept", tcp, c, err, l.plain)
	if err != nil {
		// The peer went away, broke the protocol or is not wanted without
		// SMC-R: nobody to give.
		s.log.Info("connection refused", "remote", tcp.RemoteAddr(), "err", err)
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
	l.s.reg.mu.Lock()
	_, open := l.s.reg.listeners[l]
	delete(l.s.reg.listeners, l)
	l.s.reg.mu.Unlock()
	if !open {
		return &net.OpError{Op: "close", Net: "tcp", Addr: l.Addr(), Err: net.ErrClosed}
	}
	l.stop()
	close(l.done)
	return l.tcp.Close()
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.tcp.Addr() }
