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
	"runtime/pprof"
	"strconv"
	"syscall"
	"time"

	"smcr/userstack"
)

// dialTime is the time limit to make a connection.
const dialTime = 20 * time.Second

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

// network makes connections: of TCP, or of SMC-R by an embedded stack.
type network struct {
	dial   func(address string) (net.Conn, error)
	listen func(address string) (net.Listener, error)
}

var errUsage = errors.New("usage: load [-stack] server ADDRESS | load [-stack] client ADDRESS write|roundtrip|connect DURATION [SIZE] | load [-stack] client ADDRESS many")

func run() (err error) {
	stack := flag.Bool("stack", false, "use a user-space stack of this program's own")
	profile := flag.String("profile", "", "write a CPU profile to this `file`")
	flag.Parse()
	n := network{
		dial:   func(address string) (net.Conn, error) { return net.DialTimeout("tcp", address, dialTime) },
		listen: func(address string) (net.Listener, error) { return net.Listen("tcp", address) },
	}
	if *stack {
		s, err := userstack.New(userstack.Config{
			Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		n = stackNetwork(s)
	}
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	args := flag.Args()
	if len(args) == 2 && args[0] == "server" {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		return n.serve(ctx, args[1])
	}
	if len(args) < 3 || args[0] != "client" {
		return errUsage
	}
	if len(args) == 3 && args[2] == "many" {
		return n.many(args[1], os.Stdin, os.Stdout)
	}
	return n.client(args[1], args[2], args[3:])
}

func stackNetwork(s *userstack.Stack) network {
	return network{
		dial: func(address string) (net.Conn, error) {
			d := userstack.Dialer{Stack: s, NetDialer: &net.Dialer{Timeout: dialTime}, RequireSMC: true}
			return d.DialContext(context.Background(), "tcp", address)
		},
		listen: func(address string) (net.Listener, error) {
			lc := userstack.ListenConfig{Stack: s, RequireSMC: true}
			return lc.Listen(context.Background(), "tcp", address)
		},
	}
}

// client measures for some time and prints the result.
func (n network) client(address, what string, args []string) error {
	if len(args) == 0 || len(args) > 2 {
		return errUsage
	}
	d, err := time.ParseDuration(args[0])
	if err != nil {
		return err
	}
	size := map[string]int{"write": 1 << 20, "roundtrip": 1, "connect": 1}[what]
	if size == 0 {
		return errUsage
	}
	if len(args) == 2 {
		most := maxEcho
		if what == "write" {
			most = maxMessage
		}
		if size, err = strconv.Atoi(args[1]); err != nil || size < 1 || size > most {
			return fmt.Errorf("size %q: 1 to %d bytes", args[1], most)
		}
	}
	measure := map[string]func(string, time.Duration, int) (int64, time.Duration, error){
		"write": n.write, "roundtrip": n.roundTrip, "connect": n.connect,
	}[what]
	count, took, err := measure(address, d, size)
	if err != nil {
		return err
	}
	fmt.Printf("%d %.6f\n", count, took.Seconds())
	return nil
}
