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

// Dial connects to address like net.Dial, and moves the connection to SMC-R if the peer
// speaks it. network is "tcp", "tcp4" or "tcp6".
//
// The result is a *Conn, or a *net.TCPConn if SMC-R cannot be used.
func (s *Stack) Dial(network, address string) (net.Conn, error) {
	return s.DialContext(context.Background(), network, address)
}

// DialContext is Dial with a context, which limits how long connecting and the rendezvous
// take. It has no effect after DialContext has returned. A [Dialer] has more options.
func (s *Stack) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return (&Dialer{Stack: s}).DialContext(ctx, network, address)
}

// Listen listens on address like net.Listen. Accept of the listener returns a *Conn for a
// peer that speaks SMC-R, and otherwise a *net.TCPConn. A [ListenConfig] has more options.
func (s *Stack) Listen(network, address string) (net.Listener, error) {
	return (&ListenConfig{Stack: s}).Listen(context.Background(), network, address)
}

// ListenConfig makes listeners of a [Stack]. It extends [Stack.Listen] as net.ListenConfig
// extends net.Listen. It is safe for concurrent use as long as nobody changes it.
type ListenConfig struct {
	// Stack moves the accepted connections to SMC-R. It must not be nil.
	Stack *Stack
	// NetListenConfig makes the TCP listeners. Nil means the zero
	// net.ListenConfig. Multipath TCP is always off, because its sockets cannot
	// carry the TCP option of SMC.
	NetListenConfig *net.ListenConfig
	// RequireSMC makes the listener reset each connection that would stay TCP, so Accept
	// returns only *Conn. Accept does not fail for such a connection: a client with plain TCP
	// must not disturb the server. Declined reports it.
	RequireSMC bool
	// Declined, if not nil, is called for each connection that would stay TCP, with the
	// reason, before Accept returns the connection. Several goroutines may call it at the
	// same time. Only this connection waits for it.
	Declined func(remote net.Addr, why *DeclineError)
}

// Listen listens on address: see [Stack.Listen]. ctx limits only the resolution of the
// address.
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
	go sl.run() // No guard: each accepted connection has one.
	return sl, nil
}

// listener accepts TCP connections, and returns them when their rendezvous has ended. So a
// slow peer does not delay others.
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

// serve runs the rendezvous of an accepted connection and passes it to Accept.
func (l *listener) serve(tcp *net.TCPConn) {
	s := l.s
	smc, err := s.peerSMC(tcp)
	var c *Conn
	switch {
	case err != nil:
	case !smc:
		err = s.notAnnounced(tcp)
	case s.opt.marker == nil:
		why := s.opt.notAnnounced()
		c, err = s.serverLook(s.ctx, tcp, false, rendezvous.Refusal{Code: why.Code, Err: why.Err})
	default:
		c, err = s.serverAnnounced(tcp)
	}
	nc, err := s.connOrTCP("accept", tcp, c, err, l.plain)
	if err != nil {
		// The peer has ended the connection or broken the protocol, or the connection is TCP
		// and RequireSMC is set: Accept does not get it.
		s.log.Info("connection refused", "remote", tcp.RemoteAddr(), "err", err)
		return
	}
	l.give(nc, nil)
}

// give passes c to Accept, or closes it if the listener is closed.
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
