// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"smcr/userstack"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("echo: ")
	listen := flag.String("listen", "", "serve on this `address`")
	control := flag.String("control", "", "answer smcr commands at this `address`, a path or @name (default: the network namespace's own)")
	require := flag.Bool("require", false, "refuse connections that are not SMC-R")
	direct := flag.Bool("direct", false, "have the server read and write in the memory of SMC-R connections, without a buffer of its own")
	flag.Parse()
	if (*listen == "") == (flag.NArg() != 1) {
		fmt.Fprintln(os.Stderr, "usage: echo [flags] -listen ADDRESS\n       echo [flags] HOST:PORT")
		flag.PrintDefaults()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen, flag.Arg(0), *control, *require, *direct); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, listen, server, control string, require, direct bool) (err error) {
	stack, err := userstack.New(userstack.Config{
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	// Close takes leave of the peers, which else would have to notice.
	defer func() { err = errors.Join(err, stack.Close()) }()
	if err := stack.ServeControl(ctx, control); errors.Is(err, userstack.ErrControlTaken) {
		return fmt.Errorf("%w (here: -control ADDRESS)", err)
	} else if err != nil {
		return err
	}
	if listen != "" {
		return serve(ctx, &userstack.ListenConfig{Stack: stack, RequireSMC: require, Declined: declined}, listen, direct)
	}
	return dial(ctx, &userstack.Dialer{Stack: stack, RequireSMC: require, Declined: declined}, server)
}

// declined says why a connection is not SMC-R.
func declined(remote net.Addr, why *userstack.DeclineError) {
	log.Printf("%s: %v", remote, why)
}

// serve sends back what comes until ctx ends.
func serve(ctx context.Context, lc *userstack.ListenConfig, address string, direct bool) error {
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	fmt.Println("listening on", l.Addr())
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		wg.Go(func() {
			defer c.Close()
			end := context.AfterFunc(ctx, func() { _ = c.Close() })
			defer end()
			report(c)
			if err := echo(c, direct); err != nil && ctx.Err() == nil {
				log.Printf("%s: %v", c.RemoteAddr(), err)
			}
		})
	}
}

// echo sends back what comes on one connection.
func echo(c net.Conn, direct bool) error {
	smc, ok := userstack.AsConn(c)
	if !ok || !direct {
		_, err := io.Copy(c, c)
		return err
	}
	for {
		in, _, err := smc.Peek(1) // bytes after the end of the ring come with the next Peek
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return err
		}
		out, _, err := smc.Reserve(1)
		n := copy(out, in)
		if err == nil {
			err = smc.Commit(n)
		}
		// Discard returns the memory of in, also after an error.
		if _, derr := smc.Discard(n); err == nil {
			err = derr
		}
		if err != nil {
			return err
		}
	}
}

// dial sends standard input and prints what comes back.
func dial(ctx context.Context, d *userstack.Dialer, address string) error {
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	report(c)
	go func() {
		_, err := io.Copy(c, os.Stdin)
		if half, ok := c.(interface{ CloseWrite() error }); ok && err == nil {
			_ = half.CloseWrite() // *userstack.Conn and *net.TCPConn alike
		}
	}()
	if _, err := io.Copy(os.Stdout, c); err != nil && ctx.Err() == nil {
		return err
	}
	return nil
}

// report says what carries a connection.
func report(c net.Conn) {
	smc, ok := userstack.AsConn(c)
	if !ok {
		log.Printf("%s: TCP", c.RemoteAddr())
		return
	}
	lg := smc.LinkGroup()
	for _, l := range lg.Links {
		if l.ID == lg.Link {
			log.Printf("%s: SMC-R version %d, link group %s (%s), link %d of %d on %s", c.RemoteAddr(), lg.Version, lg.ID, lg.Role.Short(), l.ID, len(lg.Links), l.IBDev)
		}
	}
}
