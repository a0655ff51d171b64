// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"smcr/internal/testing/bench"
	"smcr/internal/testing/netnstest"
)

// crowd is a load client whose number of connections grows on command.
type crowd struct {
	*netnstest.Process
	b   *bed
	smc bool
	in  io.WriteCloser
	out *bufio.Scanner
	err *os.File
}

// crowd starts a load client, and a server for it.
func (b *bed) crowd(ctx context.Context, smc bool) (c *crowd, err error) {
	at, err := b.loadServer(ctx, smc)
	if err != nil {
		return nil, err
	}
	c = &crowd{b: b, smc: smc}
	argv := b.argv(smc, b.loadArgv(smc, "client", at, "many")...)
	cmd := b.B.Command(ctx, argv[0], argv[1:]...)
	// These pipes are files, so that Wait does not wait for their end.
	inRead, inWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer inRead.Close()
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, inWrite.Close())
	}
	defer outWrite.Close()
	c.in, c.err, c.out = inWrite, outRead, bufio.NewScanner(outRead)
	cmd.Stdin, cmd.Stdout = inRead, outWrite
	if c.Process, err = b.B.Start(cmd); err != nil {
		return nil, errors.Join(err, inWrite.Close(), outRead.Close())
	}
	return c, nil
}

// say sends a command and scans its answer.
func (c *crowd) say(limit time.Duration, command, format string, values ...any) error {
	if _, err := fmt.Fprintln(c.in, command); err != nil {
		return fmt.Errorf("load: %w\n%s", err, c.Log())
	}
	if err := c.err.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	if !c.out.Scan() {
		return fmt.Errorf("load: no answer to %q: %v\n%s", command, c.out.Err(), c.Log())
	}
	if _, err := fmt.Sscanf(c.out.Text(), format, values...); err != nil {
		return fmt.Errorf("load: %w in %q", err, c.out.Text())
	}
	return nil
}

// openTime is the time limit for opening connections. On two idle cores, a thousand take
// about a second.
const openTime = 2 * time.Minute

// open makes the client hold n connections. It returns how many the client opened within
// openTime.
func (c *crowd) open(n int) (got int, err error) {
	// The last attempts may take longer.
	err = c.say(openTime+time.Minute, fmt.Sprintf("open %d %v", n, openTime), "open %d", &got)
	return got, err
}

// requests returns the requests per second on all connections.
func (c *crowd) requests(d time.Duration) (float64, error) {
	var count, seconds float64
	if err := c.say(d+time.Minute, "run "+d.String(), "ran %f %f", &count, &seconds); err != nil {
		return 0, err
	}
	if count == 0 || seconds == 0 {
		return 0, fmt.Errorf("load: no request in %q", c.out.Text())
	}
	return count / seconds, nil
}

// roots are the first processes on both hosts that belong to the transport.
func (c *crowd) roots() []int { return append(c.b.roots("load", c.smc), c.Pid()) }

// memory returns the proportional set size in bytes of all these processes.
func (c *crowd) memory() (int64, error) {
	s, err := bench.ReadSnapshot()
	if err != nil {
		return 0, err
	}
	return s.PSS(c.roots()...)
}

// end ends the client and checks that at least n connections used the right transport,
// and none another one.
func (c *crowd) end(n int) error {
	defer c.close()
	if err := c.in.Close(); err != nil {
		return err
	}
	if err := c.Process.Wait(endTime + time.Duration(n)*10*time.Millisecond); err != nil {
		return fmt.Errorf("%w\n%s", err, c.Log())
	}
	if !c.smc || c.b.embedded() {
		return nil
	}
	return c.b.counted([]byte(c.Log()), n)
}

// close ends the client in any state.
func (c *crowd) close() {
	c.Kill()
	_ = c.in.Close()
	_ = c.err.Close()
}

// newCrowdBed makes a bed for one crowd. Over TCP it has no stacks, because they are not
// needed.
func (r *runner) newCrowdBed(ctx context.Context, smc bool) (*bed, error) {
	spec := bedSpecs["1500"]
	spec.stack = smc
	return r.newBed(ctx, spec)
}

// newCrowd starts a crowd on a new bed. done ends both.
func (r *runner) newCrowd(ctx context.Context, smc bool) (c *crowd, done func() error, err error) {
	b, err := r.newCrowdBed(ctx, smc)
	if err != nil {
		return nil, nil, err
	}
	if c, err = b.crowd(ctx, smc); err != nil {
		return nil, nil, errors.Join(err, b.Close())
	}
	return c, func() error { c.close(); return b.Close() }, nil
}

// The memory of a connection is the slope between these numbers of connections. So it
// does not include what a program, a stack or a link group needs once.
const (
	fewConns  = 100
	manyConns = 400
)

// memory returns the memory of one more connection, in KiB, in all processes of both
// hosts. The stacks are new, because used ones have memory for reuse.
func memory(ctx context.Context, r *runner, _ *bed, smc bool) (values []float64, work float64, err error) {
	c, done, err := r.newCrowd(ctx, smc)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, done()) }()
	var size [2]int64
	for i, n := range []int{fewConns, manyConns} {
		if got, err := c.open(n); err != nil {
			return nil, 0, err
		} else if got != n {
			return nil, 0, fmt.Errorf("load: only %d of %d connections in %v", got, n, openTime)
		}
		if size[i], err = c.memory(); err != nil {
			return nil, 0, err
		}
	}
	if err := c.end(manyConns); err != nil {
		return nil, 0, err
	}
	return []float64{max(0, float64(size[1]-size[0])/1024/(manyConns-fewConns))}, 0, nil
}
