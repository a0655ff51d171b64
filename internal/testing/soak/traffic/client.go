// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Client makes traffic with a server of this package. Its fields must not change while it
// runs.
type Client struct {
	// Dial makes a connection, of the network "tcp" or "udp".
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Address is that of the server.
	Address string
	// Seed decides sizes, bytes and pauses.
	Seed uint64
	// ConnectTime bounds the time to make a connection with its first exchange.
	ConnectTime time.Duration
	// HungTime bounds the time in which nothing comes back.
	HungTime time.Duration
	// Pause is the mean time that a worker of [Kinds] waits between two uses.
	Pause time.Duration

	report *reporter
	seeds  atomic.Uint64
	counts map[string]*counts
	held   holder
}

// counts is a Tally that many goroutines count in.
type counts struct {
	tried, conns, open, bytes, lost, slowest atomic.Int64
	connects, trips                          times
}

func (c *counts) tally() Tally {
	return Tally{
		Tried: c.tried.Load(), Conns: c.conns.Load(), Open: c.open.Load(), Bytes: c.bytes.Load(),
		Lost: c.lost.Load(), Slowest: time.Duration(c.slowest.Load()),
		Connects: c.connects.load(), Trips: c.trips.load(),
	}
}

// Kinds returns the names of the kinds of traffic that the command start knows.
func Kinds() []string { return slices.Sorted(maps.Keys(kinds)) }

// Kinds that commands other than start use.
const (
	Held  = "held"  // connections of the command hold
	Batch = "batch" // connections of the command batch
)

// tallyTime is the time between two lines with counts.
const tallyTime = time.Second

// Run executes commands until the end of the input, and writes [Line]s. When it has
// executed a command, it writes a line with [Line.Done].
//
//	start KIND WORKERS   begin to make traffic of a kind, until stop
//	stop                 end the traffic in order, and wait for that
//	batch N WORKERS      make N connections with one exchange each, and close them
//	hold N WORKERS       make connections that stay open, until there are N
//	exchange WORKERS     use each of these connections once
//	fill N WORKERS       send N bytes on each of these connections, and have them back
//	release WORKERS      end these connections in order
//	reset WORKERS        reset these connections
//
// The error is one of the input or output, or an unknown command. Failures of the traffic
// are in the output.
func (c *Client) Run(ctx context.Context, in io.Reader, out io.Writer) error {
	c.report = newReporter(out)
	c.counts = map[string]*counts{Held: {}, Batch: {}}
	for kind := range kinds {
		c.counts[kind] = &counts{}
	}
	var workers, telling sync.WaitGroup
	stop := make(chan struct{})
	over := make(chan struct{})
	telling.Go(func() { c.tell(over) })
	err := c.commands(ctx, in, &workers, &stop)
	close(stop)
	workers.Wait()
	c.held.close()
	close(over)
	telling.Wait()
	return errors.Join(err, c.report.broken())
}

// commands executes the commands of the input.
func (c *Client) commands(ctx context.Context, in io.Reader, workers *sync.WaitGroup, stop *chan struct{}) error {
	for lines := bufio.NewScanner(in); lines.Scan() && c.report.broken() == nil; {
		f := strings.Fields(lines.Text())
		if len(f) == 0 {
			continue
		}
		kind := ""
		if f[0] == "start" && len(f) > 1 {
			kind = f[1]
			f = slices.Delete(f, 1, 2)
		}
		var n []int
		for _, s := range f[1:] {
			v, err := strconv.Atoi(s)
			if err != nil || v < 1 {
				return fmt.Errorf("traffic: command %q: %q is no number of things", lines.Text(), s)
			}
			n = append(n, v)
		}
		switch work := kinds[kind]; {
		case f[0] == "start" && work != nil && len(n) == 1:
			for range n[0] {
				workers.Go(func() { c.worker(ctx, kind, work, *stop) })
			}
		case f[0] == "stop" && len(n) == 0:
			close(*stop)
			workers.Wait()
			*stop = make(chan struct{})
		case f[0] == "batch" && len(n) == 2:
			c.batch(ctx, n[0], n[1])
		case f[0] == "hold" && len(n) == 2:
			c.hold(ctx, n[0], n[1])
		case f[0] == "exchange" && len(n) == 1:
			c.exchangeHeld(n[0])
		case f[0] == "fill" && len(n) == 2:
			c.fillHeld(n[0], n[1])
		case f[0] == "release" && len(n) == 1:
			c.release(n[0])
		case f[0] == "reset" && len(n) == 1:
			c.reset(n[0])
		default:
			return fmt.Errorf("traffic: unknown command %q", lines.Text())
		}
		c.tallies()
		c.report.write(&Line{Done: lines.Text()})
	}
	return nil
}

// tell writes the counts from time to time, and once at the end.
func (c *Client) tell(over <-chan struct{}) {
	tick := time.NewTicker(tallyTime)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.tallies()
		case <-over:
			c.tallies()
			return
		}
	}
}

func (c *Client) tallies() {
	all := make(map[string]Tally)
	for kind, n := range c.counts {
		if t := n.tally(); t.Tried+t.Bytes+t.Lost > 0 {
			all[kind] = t
		}
	}
	c.report.write(&Line{Tallies: all})
}

// fail reports a failure that began at a time.
func (c *Client) fail(kind string, class Class, began time.Time, err error) {
	c.report.write(&Line{Failure: &Failure{Kind: kind, Class: class, Began: began, At: time.Now(), Error: err.Error()}})
}

// seed returns a seed that no other use has.
func (c *Client) seed() uint64 {
	s := stream{seed: c.Seed}
	return s.word(c.seeds.Add(1))
}

// worker repeats a kind of traffic until stop is closed.
func (c *Client) worker(ctx context.Context, kind string, work func(*use) error, stop <-chan struct{}) {
	for {
		u := &use{client: c, ctx: ctx, kind: kind, counts: c.counts[kind], stop: stop, random: stream{seed: c.seed()}}
		_ = u.run(work) // it has reported the error
		select {
		case <-stop:
			return
		case <-time.After(u.pause()):
		}
	}
}

// each calls f for the numbers below n, in several goroutines.
func each(n, workers int, f func(i int)) {
	var wg sync.WaitGroup
	var next atomic.Int64
	for range min(n, workers) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				f(int(i))
			}
		})
	}
	wg.Wait()
}
