// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Protocols of AF_SMC sockets (linux/smc.h, enum of SMCPROTO).
const (
	protoSMC  = 0 // over IPv4
	protoSMC6 = 1 // over IPv6
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "smcpeer:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: smcpeer serve|connect [options] ADDRESS:PORT")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	tcp := flags.Bool("tcp", false, "TCP sockets")
	n := flags.Int("n", 1, "`number` of connections")
	size := flags.Int("bytes", 1<<20, "`bytes` to send over each connection")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	addr, err := netip.ParseAddrPort(flags.Arg(0))
	if err != nil {
		return err
	}
	switch args[0] {
	case "serve":
		return serve(addr, *tcp)
	case "connect":
		return connect(addr, *tcp, *n, *size)
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// A conn is a socket without deadlines: blocking system calls suffice here.
type conn int

func (c conn) Read(b []byte) (int, error) {
	n, err := unix.Read(int(c), b)
	if err != nil {
		return 0, os.NewSyscallError("read", err)
	}
	if n == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (c conn) Write(b []byte) (int, error) {
	for done := 0; done < len(b); {
		n, err := unix.Write(int(c), b[done:])
		if err != nil {
			return done, os.NewSyscallError("write", err)
		}
		done += n
	}
	return len(b), nil
}

func (c conn) Close() error { return unix.Close(int(c)) }

// socket makes a socket and the address in the form that it takes.
func socket(addr netip.AddrPort, tcp bool) (conn, unix.Sockaddr, error) {
	family, proto := unix.AF_SMC, protoSMC
	var sa unix.Sockaddr = &unix.SockaddrInet4{Port: int(addr.Port())}
	switch a := sa.(*unix.SockaddrInet4); {
	case addr.Addr().Is4():
		a.Addr = addr.Addr().As4()
	default:
		sa = &unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
		proto = protoSMC6
	}
	if tcp {
		family, proto = unix.AF_INET, 0
		if addr.Addr().Is6() {
			family = unix.AF_INET6
		}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return 0, nil, os.NewSyscallError("socket", err)
	}
	return conn(fd), sa, nil
}

func serve(addr netip.AddrPort, tcp bool) error {
	l, sa, err := socket(addr, tcp)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := unix.SetsockoptInt(int(l), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Bind(int(l), sa); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if err := unix.Listen(int(l), 64); err != nil {
		return os.NewSyscallError("listen", err)
	}
	fmt.Println("listening")
	for {
		fd, _, err := unix.Accept4(int(l), unix.SOCK_CLOEXEC)
		if err != nil {
			return os.NewSyscallError("accept", err)
		}
		go func() {
			c := conn(fd)
			defer c.Close()
			if _, err := io.Copy(c, c); err != nil {
				fmt.Fprintln(os.Stderr, "smcpeer:", err)
			}
		}()
	}
}

func connect(addr netip.AddrPort, tcp bool, n, size int) error {
	conns := make([]conn, n)
	for i := range conns {
		c, sa, err := socket(addr, tcp)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := unix.Connect(int(c), sa); err != nil {
			return os.NewSyscallError("connect", err)
		}
		conns[i] = c
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() { errs[i] = echo(c, size, byte(i)) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Println("echoed")
	return unix.Pause() // until killed
}

// echo sends while it compares what comes back, so that neither side waits for
// the other with all buffers full.
func echo(c conn, size int, seed byte) error {
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(i) ^ byte(i>>8) ^ byte(i>>16) ^ seed
	}
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(want)
		sent <- err
	}()
	got := make([]byte, size)
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return errors.New("the echo differs from what was sent")
	}
	return <-sent
}
