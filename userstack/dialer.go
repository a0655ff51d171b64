// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"smcr/smc"
	"smcr/userstack/internal/inside"
)

// Dialer connects over a [Stack]. It extends [Stack.Dial] as net.Dialer extends net.Dial. It
// is safe for concurrent use as long as nobody changes it.
type Dialer struct {
	// Stack moves the connections to SMC-R. It must not be nil.
	Stack *Stack
	// NetDialer makes the TCP connections, with its LocalAddr, Control, KeepAlive and other
	// fields. Its Timeout and Deadline also limit the rendezvous. Nil means the zero
	// net.Dialer. Multipath TCP is always off, because its sockets cannot carry the TCP
	// option of SMC.
	NetDialer *net.Dialer
	// RequireSMC makes it an error if a connection would stay TCP. The error is a
	// *net.OpError that contains a [*DeclineError]. If the reason is known before the peer is
	// asked, no TCP connection is made.
	RequireSMC bool
	// Declined, if not nil, is called for each connection that would stay TCP, with the
	// reason, before DialContext returns. Several goroutines may call it at the same time.
	Declined func(remote net.Addr, why *DeclineError)
}

// Dial connects to address. See [Dialer.DialContext].
func (d *Dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialContext(context.Background(), network, address)
}

// DialContext connects to address like net.Dialer, and moves the connection to SMC-R if the
// peer speaks it. network is "tcp", "tcp4" or "tcp6".
//
// The result is a *Conn, or a *net.TCPConn if SMC-R cannot be used and RequireSMC is false.
// ctx limits how long connecting and the rendezvous take. It has no effect after DialContext
// has returned.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	s := d.Stack
	if err := s.canOpen("dial", network); err != nil {
		return nil, err
	}
	var nd net.Dialer
	if d.NetDialer != nil {
		nd = *d.NetDialer
	}
	if nd.Timeout != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, nd.Timeout)
		defer cancel()
	}
	if !nd.Deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, nd.Deadline)
		defer cancel()
	}
	c, err := d.dial(ctx, nd, network, address, nil)
	if !d.RequireSMC && errors.Is(err, ErrNoAnswer) {
		// The server has taken PROPOSAL for data. The program has sent none.
		s.log.Info("connection made again over TCP", "address", address, "err", err)
		return d.dial(ctx, nd, network, address, copied())
	}
	return c, err
}

// dial connects once. With plain, SMC is not announced, because of it.
func (d *Dialer) dial(ctx context.Context, nd net.Dialer, network, address string, plain *DeclineError) (net.Conn, error) {
	s, uid := d.Stack, inside.OwnerFrom(ctx).UID
	var unmarked atomic.Pointer[DeclineError]
	own := controlOf(nd)
	nd.Control, nd.ControlContext = nil, func(ctx context.Context, network, address string, rc syscall.RawConn) error {
		if own != nil {
			if err := own(ctx, network, address, rc); err != nil {
				return err
			}
		}
		why := plain
		if why == nil {
			why = s.announce(uid, nd.LocalAddr, address, rc, d.RequireSMC)
		}
		if why == nil {
			return nil
		}
		unmarked.Store(why)
		if d.RequireSMC {
			d.plainTCP().tell(tcpAddr(address), why)
			return why
		}
		return nil // without the mark, the connection stays TCP: this is no reason to fail
	}
	nd.SetMultipathTCP(false)
	nc, err := nd.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	tcp := nc.(*net.TCPConn)
	smc, err := s.peerSMC(tcp)
	var c *Conn
	switch {
	case err != nil:
	case smc:
		if c, err = s.Client(ctx, tcp); errors.Is(err, ErrNoAnswer) {
			s.copies.noAnswer(time.Now(), uid, addrPort(tcp.RemoteAddr()), err)
		}
	default:
		why := cmp.Or(unmarked.Load(), s.copiedSYN(uid, tcp))
		if why == nil {
			why = s.opt.notAnnounced()
		}
		err = why
	}
	return s.connOrTCP("dial", tcp, c, err, d.plainTCP())
}

func (d *Dialer) plainTCP() plainTCP { return plainTCP{require: d.RequireSMC, declined: d.Declined} }

// controlOf returns the function of nd that package net calls: ControlContext or Control.
func controlOf(nd net.Dialer) func(ctx context.Context, network, address string, rc syscall.RawConn) error {
	switch {
	case nd.ControlContext != nil:
		return nd.ControlContext
	case nd.Control != nil:
		return func(_ context.Context, network, address string, rc syscall.RawConn) error {
			return nd.Control(network, address, rc)
		}
	}
	return nil
}

// announce marks a socket of a user, so that its SYN announces SMC. With check, it first checks
// whether SMC-R could reach address at all.
func (s *Stack) announce(uid uint32, local net.Addr, address string, rc syscall.RawConn, check bool) *DeclineError {
	if s.opt.marker == nil && !check {
		return nil
	}
	if s.copies.known(time.Now(), uid, addrPort(tcpAddr(address))) {
		return copied()
	}
	var merr error
	err := rc.Control(func(fd uintptr) {
		var from netip.Addr
		if a, ok := local.(*net.TCPAddr); ok && a != nil {
			from = a.AddrPort().Addr()
		}
		if !check {
			if merr = s.tryPathTo(from, addrPort(tcpAddr(address)).Addr()); merr == nil {
				merr = s.opt.marker.MarkConnect(int(fd))
			}
			return
		}
		if merr = s.canAnnounce(from, addrPort(tcpAddr(address)).Addr()); merr == nil && s.opt.marker != nil {
			merr = s.opt.marker.MarkConnect(int(fd))
		}
	})
	if err = errors.Join(err, merr); err == nil {
		return nil
	}
	if !check && !errors.Is(err, errNoPath) {
		s.log.Warn("cannot announce SMC", "address", address, "err", err)
	}
	why := *declineFor(err)
	why.Code, why.uncounted = smc.Diagnosis(fallbackFor(err).Reason), true
	return &why
}

// tcpAddr returns a net.Addr with the IP address and the port.
func tcpAddr(address string) net.Addr {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return &net.TCPAddr{}
	}
	return net.TCPAddrFromAddrPort(ap)
}

// canOpen returns why no connection or listener of this network can be opened, or nil.
func (s *Stack) canOpen(op, network string) error {
	switch network {
	case "tcp", "tcp4", "tcp6":
	default:
		return &net.OpError{Op: op, Net: network, Err: net.UnknownNetworkError(network)}
	}
	if s.ctx.Err() != nil {
		return &net.OpError{Op: op, Net: network, Err: ErrStackClosed}
	}
	return nil
}

// plainTCP is what happens to connections that do not use SMC-R.
type plainTCP struct {
	require  bool
	declined func(net.Addr, *DeclineError)
}

func (p plainTCP) tell(remote net.Addr, why *DeclineError) {
	if p.declined != nil {
		p.declined(remote, why)
	}
}

// connOrTCP converts the outcome of a rendezvous to a net.Conn: SMC-R, TCP after a decline if
// that is permitted, or an error.
func (s *Stack) connOrTCP(op string, tcp *net.TCPConn, c *Conn, err error, p plainTCP) (net.Conn, error) {
	if err == nil {
		return c, nil
	}
	var why *DeclineError
	if errors.As(err, &why) {
		p.tell(tcp.RemoteAddr(), why)
		s.ownStaysTCP(tcp, op == "dial", err)
		if !p.require {
			s.log.Debug("connection stays TCP", "remote", tcp.RemoteAddr(), "err", err)
			return tcp, nil
		}
	}
	_ = tcp.SetLinger(0)
	_ = tcp.Close()
	return nil, &net.OpError{Op: op, Net: "tcp", Source: tcp.LocalAddr(), Addr: tcp.RemoteAddr(), Err: err}
}
