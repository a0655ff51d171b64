// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// acceptAgain is accept4() for a socket with SO_RCVTIMEO: the kernel lets a
// signal, such as the Go runtime's, end the call, whatever SA_RESTART says.
func acceptAgain(fd, flags int) (nfd int, sa unix.Sockaddr, err error) {
	for {
		if nfd, sa, err = unix.Accept4(fd, flags); !errors.Is(err, unix.EINTR) {
			return nfd, sa, err
		}
	}
}

// probeServer is an echo server for so many connections, using accept in the
// way named. It prints its address.
func probeServer(args []string) error {
	sa, family, _ := sockaddrOf(args[0])
	how, count := args[1], len(args[2])
	flags := 0
	if how == "nonblock" {
		flags = unix.SOCK_NONBLOCK
	}
	l, err := unix.Socket(family, unix.SOCK_STREAM|flags, 0)
	if err != nil {
		return err
	}
	if family == unix.AF_INET6 {
		_ = unix.SetsockoptInt(l, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
	}
	if how == "saves" {
		if err := unix.SetsockoptInt(l, unix.IPPROTO_TCP, unix.TCP_SAVE_SYN, 1); err != nil {
			return err
		}
	}
	if err := unix.Bind(l, sa); err != nil {
		return err
	}
	if err := unix.Listen(l, 64); err != nil {
		return err
	}
	if flags != 0 {
		if _, _, err := unix.Accept4(l, 0); !errors.Is(err, unix.EAGAIN) {
			return fmt.Errorf("empty backlog: %v", err)
		}
	} else {
		if err := unix.SetsockoptTimeval(l, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50000}); err != nil {
			return err
		}
		if _, _, err := acceptAgain(l, 0); !errors.Is(err, unix.EAGAIN) {
			return fmt.Errorf("SO_RCVTIMEO on accept: %v", err)
		}
		if err := unix.SetsockoptTimeval(l, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10}); err != nil {
			return err
		}
	}
	if _, _, err := unix.Accept4(l, 1); !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("bad flags: %v", err)
	}
	name, err := unix.Getsockname(l)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, toAddrPort(name))
	errc := make(chan error, count)
	for range count {
		one := func() error {
			if flags != 0 {
				p := []unix.PollFd{{Fd: int32(l), Events: unix.POLLIN}}
				for _, err := unix.Poll(p, 5000); errors.Is(err, unix.EINTR); _, err = unix.Poll(p, 5000) {
				}
			}
			c, peer, err := acceptAgain(l, unix.SOCK_CLOEXEC)
			if errors.Is(err, unix.EAGAIN) {
				return err
			}
			if err != nil {
				return fmt.Errorf("accept: %w", err)
			}
			defer unix.Close(c)
			if f, _ := unix.FcntlInt(uintptr(c), unix.F_GETFD, 0); f&unix.FD_CLOEXEC == 0 {
				return errors.New("SOCK_CLOEXEC lost")
			}
			if f, _ := unix.FcntlInt(uintptr(c), unix.F_GETFL, 0); f&unix.O_NONBLOCK != 0 {
				return errors.New("accepted socket is non-blocking")
			}
			p2, err := unix.Getpeername(c)
			if err != nil || toAddrPort(p2) != toAddrPort(peer) {
				return fmt.Errorf("getpeername %v, %v, accept said %v", p2, err, toAddrPort(peer))
			}
			var syn [128]byte
			if n, err := getRaw(c, unix.IPPROTO_TCP, unix.TCP_SAVED_SYN, syn[:]); how == "saves" && (n == 0 || err != nil) {
				return fmt.Errorf("the SYN that the program has saved: %d bytes, %v", n, err)
			}
			ln, err := unix.Getsockname(c)
			if err != nil || toAddrPort(ln).Port() != toAddrPort(name).Port() {
				return fmt.Errorf("getsockname %v, %v", ln, err)
			}
			b := make([]byte, 100)
			for {
				n, err := unix.Read(c, b)
				if errors.Is(err, unix.EINTR) {
					continue // sockets inherit SO_RCVTIMEO, with which it is
				}
				if err != nil {
					return fmt.Errorf("read: %w", err)
				}
				if n == 0 {
					return nil
				}
				if _, err := unix.Write(c, b[:n]); err != nil {
					return fmt.Errorf("write: %w", err)
				}
			}
		}
		if how == "threads" {
			go func() { errc <- one() }()
		} else {
			errc <- one()
		}
	}
	for range count {
		if err := <-errc; err != nil {
			return err
		}
	}
	return nil
}

// probePending looks at a connection whose handshake lasts until it says
// "pending".
func probePending(args []string) error {
	sa, family, _ := sockaddrOf(args[0])
	fd, _ := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err := unix.Connect(fd, sa); !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("connect: %v", err)
	}
	if e := soErrorOf(fd); e != 0 {
		return fmt.Errorf("SO_ERROR: %v", e)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err != nil {
		return fmt.Errorf("TCP_NODELAY: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<17); err != nil {
		return fmt.Errorf("SO_SNDBUF: %w", err)
	}
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT | unix.POLLIN}}
	if n, _ := unix.Poll(p, 50); n > 0 {
		return errors.New("ready too early")
	}
	fmt.Println("pending")
	p[0].Events, p[0].Revents = unix.POLLOUT, 0
	for start := time.Now(); p[0].Revents == 0 && time.Since(start) < patience; {
		_, _ = unix.Poll(p, 1000)
	}
	if p[0].Revents != unix.POLLOUT {
		return fmt.Errorf("not ready: %#x", p[0].Revents)
	}
	if v, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY); err != nil || v != 1 {
		return fmt.Errorf("TCP_NODELAY %d, %v", v, err)
	}
	if v, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF); err != nil || v != 1<<18 {
		return fmt.Errorf("SO_SNDBUF %d, %v", v, err)
	}
	return echo(fd, "pending")
}

// probeGoEcho is Go's own network code on both sides of one process.
func probeGoEcho(args []string) error {
	l, err := net.Listen("tcp", args[0])
	if err != nil {
		return err
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 32<<10)
				for {
					n, err := c.Read(b)
					if n > 0 {
						_, _ = c.Write(b[:n])
					}
					if err != nil {
						return
					}
				}
			}()
		}
	}()
	errc := make(chan error, 8)
	for range 8 {
		go func() {
			errc <- func() error {
				c, err := net.DialTimeout("tcp", l.Addr().String(), patience)
				if err != nil {
					return err
				}
				defer c.Close()
				if c.RemoteAddr().String() != l.Addr().String() {
					return fmt.Errorf("remote %v, want %v", c.RemoteAddr(), l.Addr())
				}
				msg := bytes.Repeat([]byte("0123456789abcdef"), 16<<10)
				go func() { _, _ = c.Write(msg) }()
				got := make([]byte, len(msg))
				_ = c.SetReadDeadline(time.Now().Add(patience))
				for n := 0; n < len(got); {
					m, err := c.Read(got[n:])
					if err != nil {
						return fmt.Errorf("after %d bytes: %w", n, err)
					}
					n += m
				}
				if !bytes.Equal(got, msg) {
					return errors.New("echo differs")
				}
				return c.(*net.TCPConn).SetNoDelay(false)
			}()
		}()
	}
	for range 8 {
		if err := <-errc; err != nil {
			return err
		}
	}
	return nil
}
