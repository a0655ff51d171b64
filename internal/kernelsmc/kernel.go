// SPDX-License-Identifier: Apache-2.0

package kernelsmc

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Protocols of AF_SMC sockets (linux/smc.h): IPv4 or IPv6 below.
const (
	smcProtoSMC  = 0
	smcProtoSMC6 = 1
)

// ErrNoSMC means that the kernel has no SMC sockets.
var ErrNoSMC = errors.New("kernelsmc: the kernel has no SMC sockets (AF_SMC): try 'modprobe smc'")

// Config says which SMC sockets take the place of TCP sockets.
type Config struct {
	// Inet makes sockets with the address family of the program's call and protocol IPPROTO_SMC, instead of AF_SMC sockets. Only
	// SO_PROTOCOL shows that such a socket is not TCP. It needs Linux 6.11.
	Inet bool
	// RcvBuf and SndBuf are set as SO_RCVBUF and SO_SNDBUF, in bytes; they determine the sizes of RMB element and send buffer. With
	// CAP_NET_ADMIN they may exceed net.core.rmem_max and wmem_max. 0 leaves the default.
	RcvBuf, SndBuf int
}

// Probe makes an SMC socket and closes it. This makes the kernel load its module if there is one. The error matches ErrNoSMC if the
// kernel has no such sockets.
func (c Config) Probe() error {
	fd, err := c.socket(unix.AF_INET, 0)
	switch {
	case err == nil:
		return unix.Close(fd)
	case errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.ESOCKTNOSUPPORT):
		return fmt.Errorf("%w: %w", ErrNoSMC, err)
	}
	return fmt.Errorf("kernelsmc: %w", os.NewSyscallError("socket AF_SMC", err))
}

// socket makes the SMC socket that takes the place of a TCP socket of domain AF_INET or AF_INET6. flags may have SOCK_NONBLOCK.
func (c Config) socket(domain, flags int) (int, error) {
	typ := unix.SOCK_STREAM | unix.SOCK_CLOEXEC | flags&unix.SOCK_NONBLOCK
	if c.Inet {
		return unix.Socket(domain, typ, unix.IPPROTO_SMC)
	}
	proto := smcProtoSMC
	if domain == unix.AF_INET6 {
		proto = smcProtoSMC6
	}
	return unix.Socket(unix.AF_SMC, typ, proto)
}

// setBuffers sets the buffer sizes that c asks for.
func (c Config) setBuffers(fd int) error {
	set := func(force, plain, size int) error {
		if size <= 0 || unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) == nil {
			return nil
		}
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, size)
	}
	return errors.Join(
		os.NewSyscallError("setsockopt SO_RCVBUF", set(unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, c.RcvBuf)),
		os.NewSyscallError("setsockopt SO_SNDBUF", set(unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, c.SndBuf)))
}
