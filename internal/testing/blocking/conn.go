// SPDX-License-Identifier: Apache-2.0

package blocking

import (
	"errors"
	"io"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// A Protocol is the protocol of a socket.
type Protocol int

// Protocols.
const (
	TCP Protocol = iota // plain TCP
	SMC                 // AF_SMC of the kernel, which falls back to TCP
)

// Protocols of AF_SMC sockets (linux/smc.h, enum of SMCPROTO).
const (
	protoSMC  = 0 // over IPv4
	protoSMC6 = 1 // over IPv6
)

// A Conn is the descriptor of a socket. Errors of its methods are *os.SyscallError.
type Conn int

// Dial connects to addr.
func Dial(p Protocol, addr netip.AddrPort) (Conn, error) {
	c, sa, err := socket(p, addr)
	if err != nil {
		return 0, err
	}
	if err := unix.Connect(int(c), sa); err != nil {
		return 0, errors.Join(os.NewSyscallError("connect", err), c.Close())
	}
	return c, nil
}

// Listen returns a socket that listens at addr, with room for backlog
// connections that are not accepted yet.
func Listen(p Protocol, addr netip.AddrPort, backlog int) (Conn, error) {
	c, sa, err := socket(p, addr)
	if err != nil {
		return 0, err
	}
	for _, step := range []struct {
		call string
		err  func() error
	}{
		{"setsockopt", func() error { return unix.SetsockoptInt(int(c), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }},
		{"bind", func() error { return unix.Bind(int(c), sa) }},
		{"listen", func() error { return unix.Listen(int(c), backlog) }},
	} {
		if err := step.err(); err != nil {
			return 0, errors.Join(os.NewSyscallError(step.call, err), c.Close())
		}
	}
	return c, nil
}

// socket makes a socket. It also returns its address in the form for system calls.
func socket(p Protocol, addr netip.AddrPort) (Conn, unix.Sockaddr, error) {
	family, proto := unix.AF_INET, protoSMC
	var sa unix.Sockaddr
	if addr.Addr().Is4() {
		sa = &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
	} else {
		sa = &unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
		family, proto = unix.AF_INET6, protoSMC6
	}
	if p == SMC {
		family = unix.AF_SMC
	} else {
		proto = 0
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return 0, nil, os.NewSyscallError("socket", err)
	}
	return Conn(fd), sa, nil
}

// Accept waits for a connection on a listening socket.
func (c Conn) Accept() (Conn, error) {
	fd, _, err := unix.Accept4(int(c), unix.SOCK_CLOEXEC)
	if err != nil {
		return 0, os.NewSyscallError("accept", err)
	}
	return Conn(fd), nil
}

// Read implements io.Reader.
func (c Conn) Read(b []byte) (int, error) {
	n, err := unix.Read(int(c), b)
	if err != nil {
		return 0, os.NewSyscallError("read", err)
	}
	if n == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// Write implements io.Writer.
func (c Conn) Write(b []byte) (int, error) {
	for done := 0; done < len(b); {
		n, err := unix.Write(int(c), b[done:])
		if err != nil {
			return done, os.NewSyscallError("write", err)
		}
		done += n
	}
	return len(b), nil
}

// CloseWrite ends the stream to the peer.
func (c Conn) CloseWrite() error {
	return os.NewSyscallError("shutdown", unix.Shutdown(int(c), unix.SHUT_WR))
}

// Close implements io.Closer.
func (c Conn) Close() error { return os.NewSyscallError("close", unix.Close(int(c))) }
