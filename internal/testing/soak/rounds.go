// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"smcr/internal/testing/adversary"
	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/soak/gauge"
	"smcr/internal/testing/soak/traffic"
)

// roundsBed is two hosts with stacks, a client on a whose server is on b, and a hostile host.
// The same is done round after round. What is left of a round is no growth if the next ones do not
// add to it.
type roundsBed struct {
	*bed
	lan     *netnstest.LAN
	a, b    *netnstest.Host
	hostile *adversary.Host
	stacks  map[*netnstest.Host]*member
	server  *member
	client  *client
	kind    *roundKind
	row     *Row
	n       int // things of a round
	closers []io.Closer
}

// roundMargins are what a stack may have more after the last round than after the first ones. The heap
// and the memory are judged by things: see [roundsBed.margins].
var roundMargins = gauge.Sample{Descriptors: 24, Threads: 8, Goroutines: 16, Heap: 1 << 20, RSS: 8 << 20, Mapped: 160 << 20, Entries: 16}

// runRounds makes rounds of each kind, and looks what a stack has after each.
func runRounds(ctx context.Context, flags *flag.FlagSet, args []string) (bool, error) {
	n := flags.Int("n", 500, "`number` of things in a round")
	rounds := flags.Int("rounds", 12, "`number` of rounds")
	warm := flags.Int("warm", 4, "`number` of rounds before the first one that is compared")
	idle := flags.Duration("idle", 0, "look again after this `time` without a connection")
	only := flags.String("run", "", "kinds whose names match this `regexp`")
	profile := flags.String("profile", "", "write heap profiles of the processes at the end to this `folder`")
	if err := flags.Parse(args); err != nil {
		return false, err
	}
	match, err := regexp.Compile(*only)
	if err != nil {
		return false, err
	}
	if *n < 1 || *warm < 1 || *rounds <= *warm {
		return false, fmt.Errorf("%d rounds of %d things, %d before the first one that is compared: that compares nothing", *rounds, *n, *warm)
	}
	var rows []*Row
	for i := range roundKinds {
		k := &roundKinds[i]
		if !match.MatchString(k.name) || ctx.Err() != nil {
			continue
		}
		row, err := roundsOf(ctx, k, *n, *rounds, *warm, *idle, *profile)
		if err != nil {
			return summary(rows...), fmt.Errorf("%s: %w", k.name, err)
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		return false, fmt.Errorf("no kind matches %q", *only)
	}
	return summary(rows...), nil
}

func roundsOf(ctx context.Context, k *roundKind, n, rounds, warm int, idle time.Duration, profile string) (_ *Row, err error) {
	r := &roundsBed{kind: k, n: n, stacks: map[*netnstest.Host]*member{}, row: &Row{Fault: k.name, Traffic: fmt.Sprintf("rounds of %d", n)}}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.start(ctx); err != nil {
		return nil, err
	}
	var first map[*netnstest.Host]gauge.Sample
	for i := 1; i <= rounds && ctx.Err() == nil; i++ {
		began := time.Now()
		if err := k.run(ctx, r); err != nil {
			return nil, fmt.Errorf("round %d: %w", i, err)
		}
		say("%s: round %d took %v", k.name, i, time.Since(began).Round(time.Millisecond))
		if err := r.rest(); err != nil {
			return nil, err
		}
		r.row.Times++
		if i < warm || i == rounds {
			continue // the last one is looked at by judge
		}
		now, err := r.look(say)
		if err != nil {
			return nil, err
		}
		if i == warm {
			first = now
		}
	}
	if ctx.Err() != nil {
		r.row.note("ended early: nothing was compared")
		return r.row, nil
	}
	pause(ctx, idle)
	if err := r.judge(first, (rounds-warm)*n); err != nil {
		return nil, err
	}
	if profile != "" {
		err = r.profiles(profile, "heap", gauge.HeapProfile)
	}
	return r.row, err
}

// judge compares what the stacks have with what they had before a number of things. The kernel keeps some things for
// seconds, and so does a stack.
func (r *roundsBed) judge(first map[*netnstest.Host]gauge.Sample, things int) error {
	var left []string
	tell := say
	err := netnstest.Until(settleTime, func() error {
		now, err := r.look(tell)
		if err != nil {
			return netnstest.Stop(err)
		}
		tell = func(string, ...any) {}
		left = nil
		for _, h := range r.hosts() {
			for _, what := range grownBeyond(first[h], now[h], roundMargins) {
				left = append(left, fmt.Sprintf("stack of %s: %s, %d things since", letter(h), what, things))
			}
		}
		if len(left) > 0 {
			time.Sleep(trimTime)
			return errGrown
		}
		return nil
	})
	if err != nil && !errors.Is(err, errGrown) {
		return err
	}
	for _, what := range left {
		r.row.leak("%s", what)
	}
	return r.judgeKind()
}

// judgeKind checks that the rounds were of what the kind says.
func (r *roundsBed) judgeKind() error {
	all := map[*netnstest.Host]stackStats{}
	for _, h := range r.hosts() {
		st, err := r.stats(h)
		if err != nil {
			return err
		}
		if all[h] = st; st.Panics > 0 {
			r.row.leak("%d panics on %s", st.Panics, h.Name)
		}
	}
	t := r.client.total()
	r.row.Connections, r.row.Bytes = t.Conns, t.Bytes
	if r.kind.seen == nil {
		return nil
	}
	tried := t.Tried
	if tried == 0 {
		tried = r.row.Times * int64(r.n)
	}
	// A busy machine may leave some to TCP.
	if seen := r.kind.seen(t, all[r.a], all[r.b]); seen*10 < tried*9 {
		r.row.leak("only %d of %d were what they should have been", seen, tried)
	}
	return nil
}

func (r *roundsBed) hosts() []*netnstest.Host { return []*netnstest.Host{r.a, r.b} }

// letter is that of a host of the LAN.
func letter(h *netnstest.Host) string { return h.Name[len(h.Name)-1:] }

func (r *roundsBed) start(ctx context.Context) (err error) {
	if r.bed, err = newBed(); err != nil {
		return err
	}
	if r.lan, err = netnstest.CreateLAN(3, 1); err != nil {
		return err
	}
	r.a, r.b = r.lan.Hosts[0], r.lan.Hosts[1]
	if r.hostile, err = adversary.Open(r.lan.Hosts[2]); err != nil {
		return err
	}
	for _, h := range r.hosts() {
		if err := r.stack(h); err != nil {
			return err
		}
	}
	if r.server, err = r.bed.server(r.b, r.under(r.b, "--no-adapt"), r.b.Addr()+serverPort); err != nil {
		return err
	}
	flags := append([]string{"-connect-time", connectBound.String(), "-pause", "20ms"}, r.kind.client...)
	address := r.b.Addr() + serverPort
	if r.kind.address != nil {
		if address, err = r.kind.address(ctx, r); err != nil {
			return err
		}
	}
	r.client, err = r.bed.client("client", r.a, r.under(r.a, "--no-adapt"), r.failed, append(flags, address)...)
	return err
}

// stack starts the stack of a host.
func (r *roundsBed) stack(h *netnstest.Host, flags ...string) error {
	flags = append(flags, "--group-idle", groupIdle.String())
	if h == r.b {
		flags = append(flags, r.kind.stack...)
	}
	m, err := r.serve(h, flags...)
	if err == nil {
		r.stacks[h] = m
	}
	return err
}

func (r *roundsBed) failed(x traffic.Failure) {
	if r.kind.refused && x.Class == traffic.Refused {
		return
	}
	if r.row.count(x.Class) < 10 {
		say("%s: %s: %s after %v: %s", r.row.Fault, x.Kind, x.Class, x.At.Sub(x.Began).Round(time.Millisecond), x.Error)
	}
}

// rest waits until nothing of a round is open, and until the stacks have given back memory.
func (r *roundsBed) rest() error {
	for _, h := range r.hosts() {
		if r.kind.keeps {
			break
		}
		if err := r.empty(h); err != nil {
			return err
		}
	}
	time.Sleep(trimTime)
	return nil
}

// look returns what the stacks have after a garbage collection, and tells it, with what they had before.
func (r *roundsBed) look(tell func(format string, args ...any)) (map[*netnstest.Host]gauge.Sample, error) {
	all := map[*netnstest.Host]gauge.Sample{}
	for _, h := range r.hosts() {
		was, err := gauge.Of(r.stacks[h].Pid())
		if err != nil {
			return nil, err
		}
		s, err := r.newest("serve", h)
		if err != nil {
			return nil, err
		}
		entries, err := gauge.Entries(r.stacks[h].Pid())
		if err != nil {
			return nil, err
		}
		var list []string
		for name, n := range entries {
			if s.Entries += n; n > 0 {
				list = append(list, fmt.Sprintf("%s %d", name, n))
			}
		}
		slices.Sort(list)
		all[h] = s
		tell("%s: %s: %5d descriptors, %3d threads, RSS %6.1f MiB (%6.1f before a collection), %4d MiB mapped, heap %6d KiB, %4d goroutines; %s",
			r.kind.name, letter(h), s.Descriptors, s.Threads, mib(s.RSS), mib(was.RSS), s.Mapped>>20, s.Heap>>10, s.Goroutines, strings.Join(list, ", "))
	}
	return all, nil
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

// newest returns what the newest process of a name has.
func (b *bed) newest(name string, h *netnstest.Host) (gauge.Sample, error) {
	b.mu.Lock()
	path := ""
	for _, g := range b.gauges {
		if g.name == gaugeName(name, h) {
			path = g.path
		}
	}
	b.mu.Unlock()
	return gauge.Read(path)
}

// close ends everything.
func (r *roundsBed) close() error {
	var errs []error
	if r.client != nil {
		errs = append(errs, r.client.finish())
	}
	if r.server != nil {
		errs = append(errs, r.server.end())
	}
	for _, c := range r.closers {
		errs = append(errs, c.Close())
	}
	for _, m := range r.stacks {
		errs = append(errs, m.end())
	}
	if r.hostile != nil {
		errs = append(errs, r.hostile.Close())
	}
	if r.lan != nil {
		errs = append(errs, r.lan.Close())
	}
	if r.bed != nil {
		errs = append(errs, r.bed.close())
	}
	return errors.Join(errs...)
}

// several calls f n times, by some goroutines. An error counts when f has failed for long: a stack
// refuses some of what one host wants at once.
func several(ctx context.Context, n, workers int, f func() error) error {
	var next atomic.Int64
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for next.Add(1) <= int64(n) && errs[i] == nil && ctx.Err() == nil {
				errs[i] = netnstest.Until(settleTime, f)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
