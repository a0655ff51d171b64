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
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/blocking"
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
	every := flags.Duration("every", 0, "`time` between two echoes; 0: only one")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	addr, err := netip.ParseAddrPort(flags.Arg(0))
	if err != nil {
		return err
	}
	p := blocking.SMC
	if *tcp {
		p = blocking.TCP
	}
	switch args[0] {
	case "serve":
		return serve(p, addr)
	case "connect":
		return connect(p, addr, *n, *size, *every)
	}
	return fmt.Errorf("unknown command %q", args[0])
}

func serve(p blocking.Protocol, addr netip.AddrPort) error {
	l, err := blocking.Listen(p, addr, 64)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println("listening")
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			if _, err := io.Copy(c, c); err != nil {
				fmt.Fprintln(os.Stderr, "smcpeer:", err)
			}
		}()
	}
}

func connect(p blocking.Protocol, addr netip.AddrPort, n, size int, every time.Duration) error {
	conns := make([]blocking.Conn, n)
	for i := range conns {
		c, err := blocking.Dial(p, addr)
		if err != nil {
			return err
		}
		defer c.Close()
		conns[i] = c
	}
	for {
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
		if every == 0 {
			return unix.Pause() // until killed
		}
		time.Sleep(every)
	}
}

// echo sends and compares the echo at the same time, so that full buffers cannot block
// both sides.
func echo(c blocking.Conn, size int, seed byte) error {
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
