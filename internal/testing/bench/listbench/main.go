// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"smcr/internal/testing/bench"
)

// sizes are the numbers of rows of the tables.
var sizes = []int{1, 1000, 100000}

// A listing is a command that prints one line for each row.
type listing struct {
	argv  []string
	env   bool // uses SMCR_BACKEND instead of --backend
	lines int  // lines besides the rows
	c     *bench.CTool
}

var listings = []listing{
	{argv: []string{"smcr", "linkgroup", "list", "--backend"}, lines: 1},
	{argv: []string{"smcr", "connection", "list", "--backend"}, lines: 1},
	{argv: []string{"smcr", "linkgroup", "show"}, env: true, lines: 1, c: &bench.CToolLinkGroups},
	{argv: []string{"smcss", "-a"}, env: true, lines: 1, c: &bench.CToolConnections},
}

func main() {
	smcr := flag.String("smcr", "bin/smcr", "the smcr `program`")
	rounds := flag.Int("rounds", 5, "`number` of rounds")
	serve := flag.Int("serve", 0, "serve this `number` of rows at the socket that is the argument, until the end of input")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, time.Minute+time.Duration(*rounds)*time.Minute)
	defer cancel()
	var err error
	if *serve > 0 {
		err = serveRows(*serve, flag.Arg(0))
	} else {
		err = run(ctx, *smcr, *rounds)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "listbench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, smcr string, rounds int) error {
	dir, err := os.MkdirTemp("", "smcr-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if smcr, err = filepath.Abs(smcr); err != nil {
		return err
	}
	for _, name := range []string{"smcr", "smcss"} {
		if err := os.Symlink(smcr, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	floor, err := measure(ctx, "true", nil, nil, 1)
	if err != nil {
		return err
	}

	start, err := measure(ctx, filepath.Join(dir, "smcr"), []string{"--version"}, nil, rounds)
	if err != nil {
		return err
	}
	start.Command = "smcr --version"
	byCommand := make([][]*bench.Listing, len(listings))
	for _, rows := range sizes {
		list, err := measureAll(ctx, dir, rows, rounds)
		if err != nil {
			return fmt.Errorf("%d rows: %w", rows, err)
		}
		for i, l := range list {
			byCommand[i] = append(byCommand[i], l)
		}
	}
	all := append([]*bench.Listing{start}, slices.Concat(byCommand...)...)
	fmt.Printf("\nlistings from a generated netlink peer (PEER), %d rounds, medians\n", rounds)
	return bench.PrintListings(os.Stdout, all, floor.Memory[0])
}

// measureAll measures each listing on tables of one size.
func measureAll(ctx context.Context, dir string, rows, rounds int) (all []*bench.Listing, err error) {
	socket := filepath.Join(dir, fmt.Sprint(rows))
	stop, err := startPeer(ctx, rows, socket)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	for _, l := range listings {
		path, args, env := filepath.Join(dir, l.argv[0]), l.argv[1:], []string(nil)
		shown := strings.Join(l.argv, " ")
		if l.env {
			env = []string{"SMCR_BACKEND=unix:" + socket}
			shown = "SMCR_BACKEND=unix:PEER " + shown
		} else {
			args = append(slices.Clone(args), "unix:"+socket)
			shown += " unix:PEER"
		}
		// Check that the command lists all rows.
		cmd := command(ctx, path, args, env)
		var messages bytes.Buffer
		cmd.Stderr = &messages
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w\n%s", shown, err, &messages)
		}
		if n := bytes.Count(out, []byte("\n")) - l.lines; n != rows {
			return nil, fmt.Errorf("%s printed %d rows", shown, n)
		}
		m, err := measure(ctx, path, args, env, rounds)
		if err != nil {
			return nil, err
		}
		m.Command, m.Rows = shown, rows
		if l.c != nil && rows <= l.c.Rows {
			m.C = l.c // there is no value for larger tables
		}
		all = append(all, m)
	}
	return all, nil
}

func command(ctx context.Context, path string, args, env []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// measure runs a command several times and discards its output.
func measure(ctx context.Context, path string, args, env []string, rounds int) (*bench.Listing, error) {
	m := new(bench.Listing)
	for range rounds {
		cmd := command(ctx, path, args, env)
		cmd.Stderr = os.Stderr
		begin := time.Now()
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
		}
		m.Wall = append(m.Wall, time.Since(begin).Seconds()*1e3)
		state := cmd.ProcessState
		m.CPU = append(m.CPU, (state.UserTime()+state.SystemTime()).Seconds()*1e3)
		usage, ok := state.SysUsage().(*syscall.Rusage)
		if !ok {
			return nil, errors.New("the system does not tell what a process used")
		}
		m.Memory = append(m.Memory, float64(usage.Maxrss)/1024) // from KiB
	}
	return m, nil
}

// startPeer starts a process that serves generated rows. It is a separate process, so
// that its memory and its garbage collector are not measured.
func startPeer(ctx context.Context, rows int, socket string) (stop func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, "-serve", fmt.Sprint(rows), socket)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		return nil, errors.Join(fmt.Errorf("the peer does not start: %w", err), in.Close(), cmd.Wait())
	}
	return func() error { return errors.Join(in.Close(), cmd.Wait()) }, nil
}
