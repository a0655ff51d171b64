// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
)

// Netlink protocols (linux/netlink.h).
const (
	netlinkSockDiag = 4
	netlinkGeneric  = 16
)

const (
	// defaultTimeout bounds an operation whose context has no deadline.
	defaultTimeout = 10 * time.Second

	// dumpRetries is how often an interrupted dump is repeated.
	dumpRetries = 3
)

// A Client is a [Control] that asks a stack by netlink. It performs one operation at a
// time. If the transport fails in an operation, or its context ends, the Client closes
// the connection, and the next operation makes a new one.
type Client struct {
	backend string
	dial    func(ctx context.Context, protocol int) (*netlink.Conn, error)
	shared  bool // one connection serves all protocols

	sem      chan struct{} // held during an operation; guards the fields below
	closed   bool
	conns    map[int]*netlink.Conn
	families map[string]uint16
	unix     *unixSocket // the latest one, or nil
}

var (
	_ Control     = (*Client)(nil)
	_ ControlSMCD = (*Client)(nil)
)

func newClient(backend string, dial func(context.Context, int) (*netlink.Conn, error)) *Client {
	return &Client{
		backend:  backend,
		dial:     dial,
		sem:      make(chan struct{}, 1),
		conns:    make(map[int]*netlink.Conn),
		families: make(map[string]uint16),
	}
}

// NewClient returns a client that uses sock for generic netlink and for sock_diag. sock
// must have deadlines. backend is the name of the stack in errors. Close closes sock. The
// client cannot make a new transport: after an operation that failed on it, all others
// fail.
func NewClient(sock Transport, backend string) *Client {
	c := newClient(backend, func(context.Context, int) (*netlink.Conn, error) {
		return nil, fmt.Errorf("nl: connection lost: %w", os.ErrClosed)
	})
	c.shared = true
	c.conns[0] = netlink.NewConn(sock, uint32(os.Getpid()))
	return c
}

// DialKernel returns a client of the kernel's stack for the network namespace of the
// calling thread. The kernel loads its module smc if it has one. The error matches
// [ErrNoBackend] if the kernel has no SMC.
func DialKernel(ctx context.Context) (*Client, error) {
	c := newClient("kernel", func(_ context.Context, protocol int) (*netlink.Conn, error) {
		conn, err := netlink.Dial(protocol, nil)
		if errors.Is(err, syscall.EPROTONOSUPPORT) || errors.Is(err, syscall.EAFNOSUPPORT) {
			return nil, fmt.Errorf("%w: %w", ErrNoBackend, err)
		}
		if err != nil {
			return nil, err
		}
		// A kernel that does not know the option sends errors without a text.
		_ = conn.SetOption(netlink.ExtendedAcknowledge, true)
		return conn, nil
	})
	if err := c.connect(ctx, netlinkGeneric); err != nil {
		return nil, err
	}
	return c, nil
}

// Backend returns the name of the stack: "kernel", "user", "ending-N" or "unix:ADDRESS".
func (c *Client) Backend() string { return c.backend }

// connect makes a connection and looks up the ID of SMC_GEN_NETLINK, which every stack
// has.
func (c *Client) connect(ctx context.Context, protocol int) error {
	err := c.locked(ctx, func(ctx context.Context) error {
		return c.transact(ctx, protocol, func(conn *netlink.Conn) error {
			_, err := c.family(conn, FamilyName)
			return err
		})
	})
	if err != nil {
		c.Close()
		return c.opError("connect", "", err)
	}
	return nil
}

// Close closes the connections. It waits for an operation in progress.
func (c *Client) Close() error {
	c.sem <- struct{}{}
	defer func() { <-c.sem }()
	c.closed = true
	var errs []error
	for p, conn := range c.conns {
		errs = append(errs, conn.Close())
		delete(c.conns, p)
	}
	return errors.Join(errs...)
}

// locked runs fn while no other operation runs. It waits for a limited time.
func (c *Client) locked(ctx context.Context, fn func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultTimeout)
		defer cancel()
	}
	select {
	case c.sem <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-c.sem }()
	if c.closed {
		return os.ErrClosed
	}
	return fn(ctx)
}

// transact runs fn on the connection of a protocol with the deadline of ctx. It closes
// the connection after a failure that may have left an answer unread. If the other side
// has closed a connection that was idle, nothing was sent, and fn runs again on a new
// connection.
func (c *Client) transact(ctx context.Context, protocol int, fn func(*netlink.Conn) error) error {
	if c.shared {
		protocol = 0
	}
	_, reused := c.conns[protocol]
	err := c.transactOnce(ctx, protocol, fn)
	if reused && errors.Is(err, syscall.EPIPE) && ctx.Err() == nil {
		err = c.transactOnce(ctx, protocol, fn)
	}
	return err
}

func (c *Client) transactOnce(ctx context.Context, protocol int, fn func(*netlink.Conn) error) error {
	conn := c.conns[protocol]
	if conn == nil {
		var err error
		if conn, err = c.dial(ctx, protocol); err != nil {
			return err
		}
		c.conns[protocol] = conn
		clear(c.families)
	}
	drop := func() {
		conn.Close()
		delete(c.conns, protocol)
	}

	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		drop()
		return err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	err := fn(conn)
	if !stop() {
		// The deadline of the connection has passed or is about to pass.
		drop()
		if err == nil {
			return nil
		}
		return errors.Join(ctx.Err(), err)
	}
	var ne *netlink.OpError
	if errors.As(err, &ne) && ne.Sequence == 0 {
		drop() // err is not an answer but an error of the transport
	}
	return err
}

// family returns the ID of a generic netlink family.
func (c *Client) family(conn *netlink.Conn, name string) (uint16, error) {
	if id, ok := c.families[name]; ok {
		return id, nil
	}
	f, err := genetlink.NewConn(conn).GetFamily(name)
	if errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("%w: no generic netlink family %s", ErrNoBackend, name)
	}
	if err != nil {
		return 0, err
	}
	c.families[name] = f.ID
	return f.ID, nil
}

// exchange sends a request and calls each with every answer when it arrives, so a large
// table is in memory only once. It reads all answers, even after an error of each, and
// returns the first error.
func exchange(conn *netlink.Conn, req netlink.Message, each func(netlink.Message) error) error {
	sent, err := conn.Send(req)
	if err != nil {
		return err
	}
	var first error
	interrupted := false
	for m, err := range conn.ReceiveIter() {
		switch {
		case err != nil:
			return err
		case m.Header.Sequence != sent.Header.Sequence:
			return &netlink.OpError{Op: "receive", Err: errors.New("answer to another request")}
		case m.Header.Flags&netlink.DumpInterrupted != 0:
			interrupted = true
		case first == nil && !interrupted:
			first = each(m)
		}
	}
	if interrupted {
		return ErrInterrupted
	}
	return first
}

// An answer receives the messages that answer a request.
type answer struct {
	// begin is called before the first message, and again before an interrupted dump is
	// repeated.
	begin func()
	// parse is called with the command and the attributes of each message.
	parse func(cmd uint8, attrs []byte) error
	// sockets are descriptors that go with the request.
	sockets []int
}

// genl performs a command of a generic netlink family.
func (c *Client) genl(ctx context.Context, op, family string, cmd uint8, flags netlink.HeaderFlags, attrs []byte, a answer) error {
	err := c.locked(ctx, func(ctx context.Context) error {
		return c.transact(ctx, netlinkGeneric, func(conn *netlink.Conn) error {
			id, err := c.family(conn, family)
			if err != nil {
				return err
			}
			req := netlink.Message{
				Header: netlink.Header{Type: netlink.HeaderType(id), Flags: netlink.Request | flags},
				Data:   append(appendGenl(nil, cmd), attrs...),
			}
			return repeatDump(func() error {
				if a.begin != nil {
					a.begin()
				}
				if len(a.sockets) > 0 {
					if c.unix == nil {
						return ErrNotSupported
					}
					c.unix.sockets = a.sockets
				}
				return exchange(conn, req, func(m netlink.Message) error {
					if a.parse == nil || m.Header.Type == netlink.Error {
						return nil // the acknowledgement
					}
					if len(m.Data) < genlHeaderLen {
						return fmt.Errorf("nl: answer of %d bytes", len(m.Data))
					}
					if err := a.parse(m.Data[0], m.Data[genlHeaderLen:]); err != nil {
						return fmt.Errorf("nl: answer to command %d: %w", cmd, err)
					}
					return nil
				})
			})
		})
	})
	return c.opError(op, "", err)
}

// repeatDump calls fn again while it is interrupted, at most dumpRetries times.
func repeatDump(fn func() error) error {
	for range dumpRetries {
		if err := fn(); !errors.Is(err, ErrInterrupted) {
			return err
		}
	}
	return ErrInterrupted
}

// opError returns an error with its context instead of that of the transport.
func (c *Client) opError(op, object string, err error) error {
	if err == nil {
		return nil
	}
	e := &OpError{Op: op, Backend: c.backend, Object: object, Err: err}
	var ne *netlink.OpError
	if errors.As(err, &ne) && ne.Sequence != 0 {
		e.Err, e.ExtAck = ne.Err, ne.Message
	}
	return e
}

// withObject adds the object of an operation to its error.
func withObject(err error, object string) error {
	var e *OpError
	if errors.As(err, &e) {
		e.Object = object
	}
	return err
}
