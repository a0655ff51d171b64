// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"smcr/internal/testing/soak/traffic"
	"smcr/userstack"
)

// listening is what the server prints when it can be used.
const listening = "listening"

// trafficServer is the server program: an ordinary TCP program, or one with an embedded
// stack. It ends with SIGINT.
func trafficServer(args []string) (err error) {
	flags := flag.NewFlagSet("server", flag.ContinueOnError)
	embedded := flags.Bool("stack", false, "use an embedded stack")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	address := flags.Arg(0)
	var ln net.Listener
	var udp net.PacketConn
	if *embedded {
		s, err := newStack()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		ln, err = (&userstack.ListenConfig{Stack: s}).Listen(ctx, "tcp4", address)
		if err != nil {
			return err
		}
	} else {
		if ln, err = net.Listen("tcp4", address); err != nil {
			return err
		}
		if udp, err = net.ListenPacket("udp4", address); err != nil {
			return errors.Join(err, ln.Close())
		}
	}
	fmt.Println(listening)
	var complain sync.Once // a lack of descriptors would fill the log
	traffic.Serve(ctx, ln, udp, func(err error) {
		complain.Do(func() { fmt.Fprintln(os.Stderr, "soak: server:", err) })
	})
	return nil
}

// trafficClient is the client program. It takes the commands of [traffic.Client].
func trafficClient(args []string) (err error) {
	flags := flag.NewFlagSet("client", flag.ContinueOnError)
	embedded := flags.Bool("stack", false, "use an embedded stack")
	require := flags.Bool("require", false, "with -stack: a connection that is not SMC-R fails")
	c := traffic.Client{}
	flags.Uint64Var(&c.Seed, "seed", 1, "seed")
	flags.DurationVar(&c.ConnectTime, "connect-time", 30*time.Second, "limit of a connect")
	flags.DurationVar(&c.HungTime, "hung-time", time.Minute, "limit without any progress")
	flags.DurationVar(&c.Pause, "pause", 10*time.Millisecond, "mean pause of workers")
	if err := flags.Parse(args); err != nil {
		return err
	}
	c.Address = flags.Arg(0)
	var d net.Dialer
	d.SetMultipathTCP(false)
	c.Dial = d.DialContext
	if *embedded {
		s, err := newStack()
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		c.Dial = (&userstack.Dialer{Stack: s, NetDialer: &d, RequireSMC: *require}).DialContext
	}
	// SIGINT of a terminal goes to the whole group. The end of the input ends the client.
	signal.Ignore(os.Interrupt)
	return c.Run(context.Background(), os.Stdin, os.Stdout)
}

// groupIdle is how long stacks keep a link group without connections, so that nothing of
// it is left at the end of a run.
const groupIdle = 2 * time.Second

func newStack() (*userstack.Stack, error) {
	return userstack.New(userstack.Config{
		GroupIdle: groupIdle,
		Log:       slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
}
