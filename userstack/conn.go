// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"

	"smcr/stats"
	"smcr/userstack/conn"
	"smcr/userstack/driver"
)

// Conn is an SMC-R connection. It implements net.Conn and behaves like a *net.TCPConn, half
// close in both directions included. Its addresses are those of the TCP connection below it. That connection
// stays open and carries no data.
type Conn struct {
	d      *driver.Conn
	stats  *stats.Collector
	tcp    TCPConn
	local  net.Addr
	remote net.Addr

	reading sync.Mutex // one reader at a time
	writing sync.Mutex // one writer at a time
}

// newConn returns the connection of a rendezvous that has succeeded.
func newConn(st *stats.Collector, d *driver.Conn, tcp TCPConn) *Conn {
	return &Conn{d: d, stats: st, tcp: tcp, local: tcp.LocalAddr(), remote: tcp.RemoteAddr()}
}

// LocalAddr implements net.Conn: the address of the TCP connection below.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// readError and writeError convert an error of the driver to what Read and Write return.
func (c *Conn) readError(err error) error  { return c.opError("read", sysError("read", err)) }
func (c *Conn) writeError(err error) error { return c.opError("write", sysError("write", err)) }

func (c *Conn) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}

// ErrUrgentMark is returned by [Conn.Peek] if an urgent byte follows fewer bytes than the
// caller needs. Nothing is read across an urgent byte in one piece.
var ErrUrgentMark = errors.New("userstack: an urgent byte comes next: read what is before it first")

// ErrNotReserved is returned by [Conn.Commit] for more bytes than [Conn.Reserve] has
// returned.
var ErrNotReserved = errors.New("userstack: more bytes committed than are reserved")

// sysError converts an error of the driver to what a TCP socket would report for op.
func sysError(op string, err error) error {
	switch {
	case err == nil, err == io.EOF, err == net.ErrClosed, err == os.ErrDeadlineExceeded:
		return err
	case errors.Is(err, conn.ErrPeerClosed), errors.Is(err, conn.ErrWriteClosed):
		return os.NewSyscallError(op, syscall.EPIPE)
	case errors.Is(err, conn.ErrClosed):
		return net.ErrClosed
	case errors.Is(err, conn.ErrNoUrgent):
		return os.NewSyscallError(op, syscall.EINVAL)
	case errors.Is(err, conn.ErrUrgentPending):
		return os.NewSyscallError(op, syscall.EAGAIN)
	case errors.Is(err, conn.ErrUrgentMark):
		return ErrUrgentMark
	case errors.Is(err, conn.ErrAborted):
		return os.NewSyscallError(op, syscall.ECONNABORTED)
	default:
		return os.NewSyscallError(op, syscall.ECONNRESET)
	}
}
