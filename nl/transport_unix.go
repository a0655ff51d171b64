// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"

	"smcr/internal/place"
	"smcr/internal/retry"
)

// Sizes of datagrams in bytes.
const (
	maxAnswer   = 16 << 10 // the most that a server sends, unless one message is larger
	maxDatagram = 64 << 10 // the most that is read
)

// A Peer is the process at the other end of a unix socket, according to the kernel
// (SO_PEERCRED): the one that called connect or listen.
type Peer struct {
	PID int32
	UID uint32
	GID uint32
}

// A Transport carries netlink messages. Send and SendMessages send one datagram, Receive
// and ReceiveIter read one. A Transport whose calls can be interrupted also has the
// methods SetDeadline, SetReadDeadline and SetWriteDeadline of a [net.Conn].
type Transport interface {
	Close() error
	Send(netlink.Message) error
	SendMessages([]netlink.Message) error
	Receive() ([]netlink.Message, error)
	ReceiveIter() iter.Seq2[netlink.Message, error]
}

// unixSocket is netlink over a unix sequenced-packet socket. Each packet has the messages
// of one netlink datagram.
type unixSocket struct {
	conn *net.UnixConn
	// What the user of a Transport serializes: the buffer of Receive, and the descriptors that go with the next Send.
	buf     []byte
	sockets []int
}

var _ Transport = (*unixSocket)(nil)

func (s *unixSocket) Close() error { return s.conn.Close() }

func (s *unixSocket) Send(m netlink.Message) error {
	fds := s.sockets
	s.sockets = nil
	return writeWith(s.conn, appendMessage(nil, m.Header, m.Data), fds)
}

func (s *unixSocket) SendMessages(ms []netlink.Message) error {
	var b []byte
	for _, m := range ms {
		b = appendMessage(b, m.Header, m.Data)
	}
	return writeDatagram(s.conn, b)
}

// receive returns a datagram in memory that has exactly its size: a table can have
// thousands of datagrams.
func (s *unixSocket) receive() ([]byte, error) {
	if s.buf == nil {
		s.buf = make([]byte, maxDatagram)
	}
	b, err := readDatagram(s.conn, s.buf)
	return bytes.Clone(b), err
}

func (s *unixSocket) Receive() ([]netlink.Message, error) {
	b, err := s.receive()
	if err != nil {
		return nil, err
	}
	return splitMessages(b)
}

func (s *unixSocket) ReceiveIter() iter.Seq2[netlink.Message, error] {
	return func(yield func(netlink.Message, error) bool) {
		b, err := s.receive()
		for err == nil && len(b) > 0 {
			var m netlink.Message
			if m, b, err = nextMessage(b); err == nil && !yield(m, nil) {
				return
			}
		}
		if err != nil {
			yield(netlink.Message{}, err)
		}
	}
}

func (s *unixSocket) SetDeadline(t time.Time) error      { return s.conn.SetDeadline(t) }
func (s *unixSocket) SetReadDeadline(t time.Time) error  { return s.conn.SetReadDeadline(t) }
func (s *unixSocket) SetWriteDeadline(t time.Time) error { return s.conn.SetWriteDeadline(t) }

// memoryTime is how long a datagram is sent again while the kernel has no memory for it.
const memoryTime = time.Second

// writeDatagram sends one packet on a unix socket, whole or not at all.
func writeDatagram(conn io.Writer, b []byte) error {
	return retry.While(retry.NoMemory, memoryTime, func() error {
		_, err := conn.Write(b)
		return err
	})
}

// readDatagram reads one packet into b. It fails if the packet does not fit, and returns
// io.EOF if the other side has closed the connection.
func readDatagram(conn *net.UnixConn, b []byte) ([]byte, error) {
	n, _, flags, _, err := conn.ReadMsgUnix(b, nil)
	if err != nil {
		return nil, err
	}
	return packet(b, n, flags)
}

// errDescriptors means that a datagram came with descriptors that nobody sends who means well.
var errDescriptors = errors.New("nl: a datagram with descriptors")

// packet returns the packet of n bytes that was received into b.
func packet(b []byte, n, flags int) ([]byte, error) {
	switch {
	case flags&syscall.MSG_CTRUNC != 0:
		return nil, errDescriptors
	case n == 0:
		return nil, io.EOF
	case flags&syscall.MSG_TRUNC != 0:
		return nil, fmt.Errorf("nl: datagram larger than %d bytes", len(b))
	}
	return b[:n], nil
}

// DialUser returns a client of the stack that runs in user space in this network
// namespace: /run/smcr/COOKIE/nl, where COOKIE is SO_NETNS_COOKIE in decimal, or
// $XDG_RUNTIME_DIR/smcr/COOKIE/nl of the caller's user. The error matches [ErrNoBackend]
// if there is no stack. It matches [os.ErrPermission] if the socket, its directories or
// the process that listens belong neither to root nor to the caller's user: it could be
// an impostor.
func DialUser(ctx context.Context) (*Client, error) {
	return dialUnix(ctx, "user", func(ctx context.Context) (*net.UnixConn, error) { return connectUser(ctx, place.Commands) })
}

// Ending returns the names of the stacks of this network namespace that have handed over to
// another process and still have connections, for [DialEnding]. Each name is "ending-" and a
// number. A stack has the same name until it ends; then another one may get the name.
func Ending() []string { return place.Ending() }

// A Drain says about a stack of [Ending] since when it has handed over, and when it ends at the latest.
type Drain = place.Drain

// Draining returns what is known of the stacks of Ending, the one that handed over first in front.
func Draining() []Drain { return place.Draining() }

// DialEnding returns a client of a stack that has handed over to another process. The error
// matches [ErrNoBackend] if there is none with this name, for example because it has ended.
// Otherwise, errors are those of [DialUser].
func DialEnding(ctx context.Context, name string) (*Client, error) {
	if !slices.Contains(Ending(), name) {
		return nil, fmt.Errorf("%w: no stack %q is ending", ErrNoBackend, name)
	}
	return dialUnix(ctx, name, func(ctx context.Context) (*net.UnixConn, error) { return connectUser(ctx, name) })
}

// DialUnix returns a client of the stack that listens at a unix socket. An address that
// begins with "@" is in the abstract name space of the current network namespace; others
// are paths. The process that listens must belong to root or to the caller's user;
// otherwise the error matches [os.ErrPermission].
func DialUnix(ctx context.Context, address string) (*Client, error) {
	return dialUnix(ctx, "unix:"+address, func(ctx context.Context) (*net.UnixConn, error) {
		return connectUnix(ctx, address)
	})
}

func dialUnix(ctx context.Context, backend string, connect func(context.Context) (*net.UnixConn, error)) (*Client, error) {
	var c *Client
	c = newClient(backend, func(ctx context.Context, _ int) (*netlink.Conn, error) {
		conn, err := connect(ctx)
		if err != nil {
			return nil, err
		}
		c.unix = &unixSocket{conn: conn}
		return netlink.NewConn(c.unix, uint32(os.Getpid())), nil
	})
	c.shared = true
	if err := c.connect(ctx, netlinkGeneric); err != nil {
		return nil, err
	}
	return c, nil
}

// connectUser connects to a socket of commands in the directory of the stack.
func connectUser(ctx context.Context, name string) (*net.UnixConn, error) {
	conn, err := place.Dial(ctx, name)
	switch {
	case errors.Is(err, place.ErrAbsent):
		return nil, fmt.Errorf("%w: %w", ErrNoBackend, err)
	case err != nil:
		return nil, fmt.Errorf("nl: %w", err)
	}
	return conn, nil
}

func connectUnix(ctx context.Context, address string) (*net.UnixConn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unixpacket", address)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%w: nothing listens at %s", ErrNoBackend, address)
	case err != nil:
		return nil, err
	}
	uc := conn.(*net.UnixConn)
	peer, err := peerOf(uc)
	if err != nil {
		uc.Close()
		return nil, fmt.Errorf("nl: credentials of the stack at %s: %w", address, err)
	}
	if euid := uint32(os.Geteuid()); peer.UID != 0 && peer.UID != euid {
		uc.Close()
		return nil, fmt.Errorf("nl: the stack at %s belongs to user %d, not to root or user %d: %w",
			address, peer.UID, euid, os.ErrPermission)
	}
	return uc, nil
}

// ListenUnix listens at an address in the form of [DialUnix]. The error matches
// [syscall.EADDRINUSE] if a stack listens there. If the address is a path, the file is
// removed when the listener is closed.
func ListenUnix(address string) (*net.UnixListener, error) {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: address, Net: "unixpacket"})
	if err != nil {
		return nil, fmt.Errorf("nl: take %s: %w", address, err)
	}
	return l, nil
}
