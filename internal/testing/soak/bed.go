// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/soak/gauge"
	"smcr/internal/testing/soak/traffic"
)

// Bounds. Each is many times what an idle machine needs.
const (
	startTime   = 30 * time.Second // until a program can be used
	commandTime = 30 * time.Second // for one smcr command
	endTime     = 30 * time.Second // until a program has ended
	settleTime  = 60 * time.Second // until what has ended is given back
)

// bed starts programs on hosts.
type bed struct {
	exe string // a copy of this program
	dir string // of the copy and the gauges

	mu      sync.Mutex
	members []*member // in the order of their start
	gauges  []gaugeAt
}

// newBed makes a directory, which close removes.
func newBed() (*bed, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "smcr-soak-")
	if err != nil {
		return nil, err
	}
	// Programs of other users also have their gauges there.
	if err := os.Chmod(dir, 0o1777); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	// Other users may not reach the place of a program of go run.
	b := &bed{exe: filepath.Join(dir, "soak"), dir: dir}
	program, err := os.ReadFile(exe)
	if err == nil {
		err = os.WriteFile(b.exe, program, 0o755)
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

// as returns the words that start a program as a user without privileges.
func as(uid string) []string {
	return []string{"setpriv", "--reuid=" + uid, "--regid=" + uid, "--clear-groups", "--inh-caps=-all"}
}

func (b *bed) close() error { return os.RemoveAll(b.dir) }

// member is a command that the bed has started. A program under smcr run and its waiter
// are one member.
type member struct {
	*netnstest.Process
	name string
	host *netnstest.Host
}

// gaugeAt is where a process of the bed tells what it has.
type gaugeAt struct{ name, path string }

// gauge returns the path for the gauge of a new process.
func (b *bed) gauge(name string, h *netnstest.Host) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	name = gaugeName(name, h)
	path := filepath.Join(b.dir, fmt.Sprintf("%d-%s", len(b.gauges)+1, name))
	b.gauges = append(b.gauges, gaugeAt{name, path})
	return path
}

// gaugeName returns the name of a process with the letter of its host.
func gaugeName(name string, h *netnstest.Host) string { return h.Name[len(h.Name)-1:] + "-" + name }

// sample is what a process of the bed has.
type sample struct {
	gaugeAt
	gauge.Sample
}

// samples returns what the processes have that run.
func (b *bed) samples() (list []sample, err error) {
	b.mu.Lock()
	gauges := b.gauges[:len(b.gauges):len(b.gauges)]
	b.mu.Unlock()
	for _, g := range gauges {
		s, err := gauge.Read(g.path)
		if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
			continue // it has ended
		}
		if err != nil {
			return list, fmt.Errorf("%s: %w", g.name, err)
		}
		list = append(list, sample{g, s})
	}
	return list, nil
}

// profiles asks all processes that run a question, and writes the answers to files NAME.KIND
// of a folder.
func (b *bed) profiles(folder, kind string, q gauge.Question) error {
	b.mu.Lock()
	gauges := b.gauges[:len(b.gauges):len(b.gauges)]
	b.mu.Unlock()
	errs := make([]error, len(gauges))
	var wg sync.WaitGroup
	for i, g := range gauges {
		wg.Go(func() {
			answer, err := gauge.Ask(g.path, q)
			if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
				return // it has ended
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(folder, filepath.Base(b.dir)+"-"+g.name+"."+kind), answer, 0o644)
			}
			errs[i] = err
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// start starts a command on a host. Its output is in the log of the process, except
// standard output if out is not nil.
func (b *bed) start(name string, h *netnstest.Host, argv []string, in io.Reader, out io.Writer) (*member, error) {
	cmd := h.Command(context.Background(), argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout = in, out
	p, err := h.Start(cmd)
	if err != nil {
		return nil, err
	}
	m := &member{Process: p, name: name, host: h}
	b.mu.Lock()
	b.members = append(b.members, m)
	b.mu.Unlock()
	return m, nil
}

// alive returns the processes that have not ended.
func (b *bed) alive() (list []*member) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, m := range b.members {
		select {
		case <-m.Done():
		default:
			list = append(list, m)
		}
	}
	return list
}

// end ends a process with SIGINT, and returns an error if its status is not 0.
func (m *member) end() error {
	err := m.Signal(os.Interrupt)
	if err == nil {
		err = m.Wait(endTime)
	}
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", m.name, err, lastOf(m.Log(), 4000))
	}
	return nil
}

func lastOf(s string, n int) string { return s[max(0, len(s)-n):] }

// serve starts the stack of a host, and waits until it answers.
func (b *bed) serve(h *netnstest.Host, args ...string) (*member, error) {
	argv := append([]string{b.exe, asSMCR, b.gauge("serve", h), "serve"}, args...)
	m, err := b.start("serve", h, argv, nil, nil)
	if err != nil {
		return nil, err
	}
	return m, netnstest.Until(startTime, func() error {
		select {
		case <-m.Done():
			return netnstest.Stop(fmt.Errorf("smcr serve ended:\n%s", lastOf(m.Log(), 4000)))
		default:
		}
		_, err := b.ask(h, "info")
		return err
	})
}

// ask runs an smcr command for the stack of a host and returns its output.
func (b *bed) ask(h *netnstest.Host, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	return h.Output(ctx, b.exe, append([]string{asSMCR, noGauge, "--backend", "user"}, args...)...)
}

// rows runs `smcr NOUN list` and returns the rows.
func (b *bed) rows(h *netnstest.Host, noun string) (rows []map[string]any, err error) {
	out, err := b.ask(h, noun, "list", "--output", "json")
	if err == nil {
		err = json.Unmarshal([]byte(out), &rows)
	}
	return rows, err
}

// under returns the words that start a program under smcr run, with the gauge of its waiter.
func (b *bed) under(h *netnstest.Host, flags ...string) []string {
	argv := append([]string{b.exe, asSMCR, b.gauge("run", h), "run", "--mode", "user", "-v"}, flags...)
	return append(argv, "--")
}

// server starts a traffic server behind the words of prefix.
func (b *bed) server(h *netnstest.Host, prefix []string, args ...string) (*member, error) {
	argv := append(append(prefix[:len(prefix):len(prefix)], b.exe, asServer, b.gauge("server", h)), args...)
	m, err := b.start("server", h, argv, nil, nil)
	if err == nil {
		err = m.WaitOutput(listening, startTime)
	}
	return m, err
}

// client is a traffic client, with what it has reported.
type client struct {
	*member
	in   io.WriteCloser
	done chan string // commands that were carried out
	fail func(traffic.Failure)

	mu      sync.Mutex
	tallies map[string]traffic.Tally
	bad     error // a line of the output is wrong
	failed  atomic.Int64
}

// client starts a traffic client behind the words of prefix. fail is called for each
// failure, by one goroutine.
func (b *bed) client(name string, h *netnstest.Host, prefix []string, fail func(traffic.Failure), args ...string) (*client, error) {
	argv := append(append(prefix[:len(prefix):len(prefix)], b.exe, asClient, b.gauge(name, h)), args...)
	return b.script(name, h, argv, fail)
}

// script starts a program that speaks as a traffic client does.
func (b *bed) script(name string, h *netnstest.Host, argv []string, fail func(traffic.Failure)) (*client, error) {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	c := &client{in: inW, done: make(chan string, 8), fail: fail, tallies: map[string]traffic.Tally{}}
	m, err := b.start(name, h, argv, inR, outW)
	if err != nil {
		return nil, err
	}
	c.member = m
	go func() {
		<-m.Done()
		_ = outW.Close()
		_ = inR.Close()
	}()
	go c.read(outR)
	return c, nil
}

// read reads the output.
func (c *client) read(out io.Reader) {
	defer close(c.done)
	sc := bufio.NewScanner(out)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var l traffic.Line
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			c.mu.Lock()
			c.bad = errors.Join(c.bad, fmt.Errorf("%s: %w in %.200q", c.name, err, sc.Text()))
			c.mu.Unlock()
			continue
		}
		if l.Tallies != nil {
			c.mu.Lock()
			c.tallies = l.Tallies
			c.mu.Unlock()
		}
		if l.Failure != nil {
			c.failed.Add(1)
			c.fail(*l.Failure)
		}
		if l.Done != "" {
			c.done <- l.Done
		}
	}
}

// total returns the sum of the counts of all kinds.
func (c *client) total() (sum traffic.Tally) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.tallies {
		sum.Add(t)
	}
	return sum
}

// tally returns the counts of one kind.
func (c *client) tally(kind string) traffic.Tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tallies[kind]
}

// do has the client execute a command, and waits for its end.
func (c *client) do(ctx context.Context, wait time.Duration, format string, args ...any) error {
	command := fmt.Sprintf(format, args...)
	if _, err := io.WriteString(c.in, command+"\n"); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	late := time.NewTimer(wait)
	defer late.Stop()
	for {
		select {
		case done, ok := <-c.done:
			if !ok {
				return fmt.Errorf("%s has ended:\n%s", c.name, lastOf(c.Log(), 4000))
			}
			if done == command {
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.bad
			}
		case <-late.C:
			return fmt.Errorf("%s: %q takes longer than %v: %w", c.name, command, wait, os.ErrDeadlineExceeded)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// finish ends the client by the end of its input.
func (c *client) finish() error {
	err := c.in.Close()
	if err == nil {
		err = c.Wait(endTime)
	}
	if err != nil {
		return fmt.Errorf("%s: %w\n%s", c.name, err, lastOf(c.Log(), 4000))
	}
	return nil
}

// say prints a line of progress.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s %s\n", time.Now().Format(time.TimeOnly), strings.TrimSuffix(fmt.Sprintf(format, args...), "\n"))
}

// stackStats is what a stack has counted.
type stackStats struct {
	SMCR struct {
		ClientV1 int64 `json:"client_v1"`
		ClientV2 int64 `json:"client_v2"`
		ServerV1 int64 `json:"server_v1"`
		ServerV2 int64 `json:"server_v2"`
	} `json:"smcr"`
	Fallbacks struct {
		Client int64 `json:"client"`
		Server int64 `json:"server"`
	} `json:"fallbacks"`
	Panics int64 `json:"panics"`
}

// stats asks the stack of a host what it has counted.
func (b *bed) stats(h *netnstest.Host) (stackStats, error) {
	out, err := b.ask(h, "stats", "show", "--output", "json")
	if err != nil {
		return stackStats{}, err
	}
	var rows []stackStats
	if err := json.Unmarshal([]byte(out), &rows); err != nil || len(rows) != 1 {
		return stackStats{}, errors.Join(fmt.Errorf("no statistics in %.500s", out), err)
	}
	return rows[0], nil
}
