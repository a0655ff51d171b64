// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

// options are what the commands have in common.
type options struct {
	addr     netip.AddrPort
	smc      bool
	n        int
	parallel bool
	size     int
	hold     bool
	check    bool
	dir      string
	limit    time.Duration
	steps    []string
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: peer serve|echo|reset|accept|connect [options] ADDRESS:PORT [step ...]")
	}
	var o options
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.BoolVar(&o.smc, "smc", false, "AF_SMC sockets")
	flags.IntVar(&o.n, "n", 1, "`number` of connections")
	flags.BoolVar(&o.parallel, "parallel", false, "all connections at once")
	flags.IntVar(&o.size, "bytes", 100000, "`bytes` to send over each connection")
	flags.BoolVar(&o.check, "check", false, "serve: compare with what echo sends")
	flags.BoolVar(&o.hold, "hold", false, "keep the connections until killed")
	flags.StringVar(&o.dir, "dir", "", "`directory` of the files of steps")
	flags.DurationVar(&o.limit, "limit", 20*time.Second, "`time` that a step may take")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	var err error
	if o.addr, err = netip.ParseAddrPort(flags.Arg(0)); err != nil {
		return err
	}
	if flags.NArg() > 1 {
		o.steps = flags.Args()[1:]
	}
	switch args[0] {
	case "accept":
		return o.accept()
	case "connect":
		return o.each(o.script)
	case "serve":
		return o.serve()
	case "echo":
		return o.each(o.echo)
	case "reset":
		return o.each(o.reset)
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// A conn is a blocking socket.
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

func (o *options) socket() (conn, unix.Sockaddr, error) {
	family := unix.AF_INET
	if o.smc {
		family = unix.AF_SMC
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, os.NewSyscallError("socket", err)
	}
	return conn(fd), &unix.SockaddrInet4{Port: int(o.addr.Port()), Addr: o.addr.Addr().As4()}, nil
}

// listen returns a socket that listens.
func (o *options) listen() (conn, error) {
	l, sa, err := o.socket()
	if err != nil {
		return 0, err
	}
	if err := unix.SetsockoptInt(int(l), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return 0, errors.Join(os.NewSyscallError("setsockopt", err), l.Close())
	}
	if err := unix.Bind(int(l), sa); err != nil {
		return 0, errors.Join(os.NewSyscallError("bind", err), l.Close())
	}
	if err := unix.Listen(int(l), 256); err != nil {
		return 0, errors.Join(os.NewSyscallError("listen", err), l.Close())
	}
	fmt.Println("listening")
	return l, nil
}

// accept runs the script on the first connection.
func (o *options) accept() error {
	l, err := o.listen()
	if err != nil {
		return err
	}
	fd, _, err := unix.Accept4(int(l), unix.SOCK_CLOEXEC)
	if err != nil {
		return errors.Join(os.NewSyscallError("accept", err), l.Close())
	}
	if err := l.Close(); err != nil {
		return err
	}
	return o.script(conn(fd), 0)
}

func (o *options) script(c conn, _ int) error {
	return (&script{c: c, dir: o.dir, limit: o.limit}).run(o.steps)
}

func (o *options) serve() error {
	l, err := o.listen()
	if err != nil {
		return err
	}
	defer l.Close()
	for {
		fd, _, err := unix.Accept4(int(l), unix.SOCK_CLOEXEC)
		if err != nil {
			return os.NewSyscallError("accept", err)
		}
		go func() {
			c := conn(fd)
			defer c.Close()
			// Not io.Copy, which hides how the connection ended.
			buf := make([]byte, 64<<10)
			for pos, first := 0, 0; ; {
				n, err := c.Read(buf)
				for _, b := range buf[:max(n, 0)] {
					if pos == 0 {
						first = int(b)
					}
					if o.check && b != echoByte(first, pos) {
						fmt.Printf("wrong byte %d on connection %d\n", pos, first)
						return
					}
					pos++
				}
				if err == nil {
					_, err = c.Write(buf[:n])
				}
				switch {
				case errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNABORTED):
					fmt.Println("reset")
					return
				case err == io.EOF:
					return
				case err != nil:
					fmt.Println("failed:", err)
					return
				}
			}
		}()
	}
}

// each makes the connections and hands them to use with their numbers.
func (o *options) each(use func(c conn, i int) error) error {
	var slowest atomic.Int64
	one := func(i int) error {
		c, sa, err := o.socket()
		if err != nil {
			return err
		}
		begin := time.Now()
		if err := unix.Connect(int(c), sa); err != nil {
			return errors.Join(os.NewSyscallError("connect", err), c.Close())
		}
		for took := int64(time.Since(begin)); ; {
			if old := slowest.Load(); took <= old || slowest.CompareAndSwap(old, took) {
				break
			}
		}
		return use(c, i)
	}
	errs := make([]error, o.n)
	begin := time.Now()
	if o.parallel {
		var wg sync.WaitGroup
		for i := range o.n {
			wg.Go(func() { errs[i] = one(i) })
		}
		wg.Wait()
	} else {
		for i := range o.n {
			if errs[i] = one(i); errs[i] != nil {
				break
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Printf("%d connections done in %v, slowest connect %v\n", o.n,
		time.Since(begin).Round(time.Millisecond), time.Duration(slowest.Load()).Round(time.Millisecond))
	if o.hold {
		return unix.Pause()
	}
	return nil
}

// echoByte is byte j of what connection i sends.
func echoByte(i, j int) byte { return pattern(j) ^ byte(i) }

// echo sends while it reads what comes back, and then ends its direction: what
// is still under way must come before the end of the other direction. It closes
// unless the connection is to be held.
func (o *options) echo(c conn, i int) error {
	data := make([]byte, o.size)
	for j := range data {
		data[j] = echoByte(i, j)
	}
	want := sha256.Sum256(data)
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		if err == nil && !o.hold {
			err = os.NewSyscallError("shutdown", unix.Shutdown(int(c), unix.SHUT_WR))
		}
		sent <- err
	}()
	got := make([]byte, o.size)
	if _, err := io.ReadFull(c, got); err != nil {
		return fmt.Errorf("connection %d: %w", i, err)
	}
	if err := <-sent; err != nil {
		return fmt.Errorf("connection %d: %w", i, err)
	}
	if sha256.Sum256(got) != want {
		j := 0
		for got[j] == data[j] {
			j++
		}
		return fmt.Errorf("connection %d: the echo of %d bytes differs from %d on", i, o.size, j)
	}
	if o.hold {
		return nil
	}
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		return fmt.Errorf("connection %d: %d bytes (%v) behind the end", i, n, err)
	}
	return c.Close()
}

// reset closes while the echo is not read.
func (o *options) reset(c conn, i int) error {
	if _, err := c.Write(make([]byte, o.size)); err != nil {
		return fmt.Errorf("connection %d: %w", i, err)
	}
	// Some of the echo has to be there.
	p := []unix.PollFd{{Fd: int32(c), Events: unix.POLLIN}}
	if _, err := unix.Poll(p, 5000); err != nil && err != unix.EINTR {
		return os.NewSyscallError("poll", err)
	}
	return c.Close()
}
