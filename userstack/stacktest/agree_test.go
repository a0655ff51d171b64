// SPDX-License-Identifier: Apache-2.0

package stacktest

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"smcr/nl"
	"smcr/userstack"
	"smcr/userstack/internal/bedtest"
	"smcr/userstack/simfabric"
)

var (
	agreeSeeds = flag.Uint64("agree.seeds", 400, "seeds that TestAgreement tries")
	agreeFirst = flag.Uint64("agree.first", 1, "the first of them")
)

// agreement is one rendezvous in which something fails.
type agreement struct {
	own    bool // the peer is a user-space stack; otherwise it behaves like Linux
	client bool // the role of the stack under test
	next   bool // subsequent contact: on an existing link group
	at     int  // the number of the message with which the failure begins
	lans   []string
	lasts  time.Duration
	hold   time.Duration // see simfabric.Config.Hold
	leave  time.Duration // when the program under test gives up; 0 means never
}

func (a agreement) String() string {
	role, contact := "server", "first"
	if a.client {
		role = "client"
	}
	if a.next {
		contact = "subsequent"
	}
	if a.own {
		role += " with ours"
	}
	return fmt.Sprintf("our %s, %s contact, %s down for %v from message %d on, hold %v, program leaves after %v",
		role, contact, strings.Join(a.lans, " and "), a.lasts, a.at, a.hold, a.leave)
}

func newAgreement(seed uint64) agreement {
	rng := rand.New(rand.NewPCG(seed, 1))
	a := agreement{client: rng.IntN(2) == 0, next: rng.IntN(2) == 0, at: 1 + rng.IntN(16)}
	a.lans = [][]string{{"net"}, {"roce"}, {"net", "roce"}, nil}[rng.IntN(4)]
	a.lasts = time.Duration(rng.Int64N(int64(9 * time.Second)))
	if rng.IntN(3) == 0 {
		a.hold = time.Duration(1 + rng.Int64N(int64(6*time.Second)))
	}
	a.own = rng.IntN(4) == 0
	if rng.IntN(6) == 0 {
		a.leave = time.Duration(1 + rng.Int64N(int64(7*time.Second)))
	}
	return a
}

// TestAgreement: at the end of a rendezvous, both sides use SMC-R, or both use TCP, or
// the connection ends for both. This must hold whichever message is late and whichever
// timer fires first. Most peers behave like Linux. In particular, no side waits for ever
// because it has SMC-R and the other side has TCP.
func TestAgreement(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	count := map[string]int{}
	for seed := *agreeFirst; seed < *agreeFirst+*agreeSeeds; seed++ {
		a := newAgreement(seed)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bedtest.Bubble(t, func(t *testing.T) {
				how := a.run(t, seed)
				count[how]++
				if t.Failed() {
					t.Logf("%v: %s", a, how)
				}
			})
		})
	}
	t.Logf("%v", count)
}

// run makes the connection and returns what each side uses at the end: SMC-R, TCP or
// nothing.
func (a agreement) run(t *testing.T, seed uint64) string {
	var mu sync.Mutex
	var w *simfabric.World
	seen, counting := 0, false
	begin := time.Now()
	var story []string
	say := func(format string, args ...any) {
		story = append(story, fmt.Sprintf("%v ", time.Since(begin))+fmt.Sprintf(format, args...))
	}
	defer func() {
		if t.Failed() {
			t.Log(strings.Join(story, "\n"))
		}
	}()
	observe := func(e *simfabric.Event) {
		mu.Lock()
		defer mu.Unlock()
		if !counting || e.Kind != simfabric.EventTCP && e.Kind != simfabric.EventSend {
			return
		}
		seen++
		say("%v %s -> %s %s %x", e.Kind, e.From.Host, e.To.Host, e.Note, e.Data[:min(len(e.Data), 8)])
		if seen == a.at {
			go func() {
				mu.Lock()
				say("trouble begins")
				mu.Unlock()
				for _, lan := range a.lans {
					w.SetLAN(lan, false)
				}
				time.AfterFunc(a.lasts, func() {
					for _, lan := range a.lans {
						w.SetLAN(lan, true)
					}
				})
			}()
		}
	}
	b := &bed{t: t, w: simfabric.New(simfabric.Config{Seed: seed, Delay: 10 * time.Microsecond, Jitter: 10 * time.Microsecond, Hold: a.hold, Observe: observe})}
	w = b.w
	t.Cleanup(b.w.Close)
	t.Cleanup(b.noObjects)
	host := func(n int, name string) *simfabric.Host {
		devs := bedtest.NetDevs(n, 1)
		devs[0].NoRDMA, devs[0].LAN = true, "net"
		return b.w.Host(name, append(devs, simfabric.NetDev{Name: "roce0", LAN: "roce"})...)
	}
	b.ch, b.sh = host(1, "client"), host(2, "server")
	ours, theirs := b.ch, b.sh
	if !a.client {
		ours, theirs = b.sh, b.ch
	}
	stack := func(h *simfabric.Host) *userstack.Stack {
		s := b.stack(h, nil)
		for _, p := range []nl.PNET{{ID: "NET", NetDev: "eth0"}, {ID: "NET", IBDev: "sim-roce0", IBPort: 1}} {
			if err := s.Control().AddPNET(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	s := stack(ours)
	if a.own {
		other := stack(theirs)
		play := other.Client
		if a.client {
			play = other.Server
		}
		return a.between(t, b, s, ownPlay(play), func() { mu.Lock(); counting = true; mu.Unlock() })
	}
	linux, err := newLinuxPeer(theirs, func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		say(format, args...)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := linux.close(); err != nil {
			t.Error(err)
		}
	})
	play := linux.connect
	if a.client {
		play = linux.accept
	}
	return a.between(t, b, s, linuxPlay(play), func() { mu.Lock(); counting = true; mu.Unlock() })
}

// A rendezvousFunc is the other side of a rendezvous.
type rendezvousFunc func(x *ending)

func linuxPlay(play func(*simfabric.TCPConn) (linuxMode, *linuxConn)) rendezvousFunc {
	return func(x *ending) {
		if x.mode, x.lc = play(x.ltcp); x.mode == linuxDead {
			x.ltcp.SetLinger(0)
			x.ltcp.Close()
		}
	}
}

func ownPlay(play func(context.Context, userstack.TCPConn) (*userstack.Conn, error)) rendezvousFunc {
	return func(x *ending) {
		var err error
		x.oc, err = play(context.Background(), x.ltcp)
		var d *userstack.DeclineError
		switch {
		case err == nil:
			x.mode = linuxSMC
		case errors.As(err, &d):
			x.mode = linuxTCP
		default:
			x.ltcp.SetLinger(0)
			x.ltcp.Close()
		}
	}
}

// between calls begin and then makes the connection, for a.next on an existing link
// group.
func (a agreement) between(t *testing.T, b *bed, s *userstack.Stack, play rendezvousFunc, begin func()) string {
	if a.next {
		x := a.rendezvous(b, s, play, 0)
		if x.err != nil || x.mode != linuxSMC {
			if a.hold == 0 {
				t.Fatalf("the first contact fails: %v, Linux %v", x.err, x.mode)
			}
			x.end()
			return "no first contact"
		}
		defer x.end()
	}
	begin()
	x := a.rendezvous(b, s, play, a.leave)
	defer x.end()
	return x.judge(t)
}

// ending is how a rendezvous ended on each side.
type ending struct {
	c      *userstack.Conn
	err    error
	tcp    *simfabric.TCPConn // of the side under test
	mode   linuxMode
	lc     *linuxConn      // the other end, if it behaves like Linux
	oc     *userstack.Conn // the other end, if it is a user-space stack
	ltcp   *simfabric.TCPConn
	left   bool // the program under test has given up
	closed sync.Once
}

func (a agreement) rendezvous(b *bed, s *userstack.Stack, play rendezvousFunc, leave time.Duration) *ending {
	ct, st := b.tcp()
	x := &ending{tcp: st, ltcp: ct}
	run := s.Server
	if a.client {
		x.tcp, x.ltcp = ct, st
		run = s.Client
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if leave > 0 {
		time.AfterFunc(leave, cancel)
	}
	var wg sync.WaitGroup
	wg.Go(func() { play(x) })
	wg.Go(func() {
		x.c, x.err = run(ctx, x.tcp)
		var d *userstack.DeclineError
		x.left = ctx.Err() != nil
		switch {
		case x.err == nil && x.left:
			x.c.Abort()
		case errors.As(x.err, &d) && x.left:
			x.tcp.Close()
		case x.err != nil && !errors.As(x.err, &d):
			x.tcp.SetLinger(0)
			x.tcp.Close()
		}
	})
	wg.Wait()
	return x
}

// ours returns what the side under test uses.
func (x *ending) ours() linuxMode {
	var d *userstack.DeclineError
	switch {
	case x.left:
		return linuxDead
	case x.err == nil:
		return linuxSMC
	case errors.As(x.err, &d):
		return linuxTCP
	}
	return linuxDead
}

// end closes both ends of the connection.
func (x *ending) end() {
	x.closed.Do(func() {
		if x.c != nil {
			x.c.Abort()
		}
		x.tcp.SetLinger(0)
		x.tcp.Close()
		if x.oc != nil {
			x.oc.Abort()
		}
		if x.lc != nil {
			x.lc.kill()
			if x.lc.mr != nil {
				_ = x.lc.mr.Close()
			}
		}
		x.ltcp.Close()
		time.Sleep(2 * time.Minute)
	})
}

// agreeLimit is how long one side may still use SMC-R after the other has ended: Linux
// tests an idle link after 30 s.
const agreeLimit = 40 * time.Second

// judge checks that the results of both sides agree.
func (x *ending) judge(t *testing.T) string {
	how := fmt.Sprintf("%v/%v", x.ours(), x.mode)
	begin := time.Now()
	switch ours := x.ours(); {
	case ours == linuxTCP && x.mode == linuxTCP:
		x.plain(t)
	case ours == linuxSMC && x.mode == linuxSMC, ours == linuxDead && x.mode == linuxDead:
	case x.mode == linuxSMC: // the side under test does not use SMC-R
		var gone <-chan struct{}
		if x.oc != nil {
			gone = x.oc.Done()
		} else {
			gone = x.lc.dead
		}
		select {
		case <-gone:
			if d := time.Since(begin); d > time.Second {
				how += " for a while"
			}
			if ours == linuxTCP {
				how += ", then reset"
				if !isReset(x.tcp) {
					t.Error("our program hangs")
				}
			}
		case <-time.After(agreeLimit):
			t.Errorf("the other side has SMC-R, we have not (%v): it hangs", x.err)
		}
	case ours == linuxSMC:
		if x.mode == linuxTCP {
			x.ltcp.Write([]byte("data"))
		}
		select {
		case <-x.c.Done():
		case <-time.After(agreeLimit):
			t.Error("we have SMC-R, the other side has not: we hang")
		}
	default:
		// One side has TCP, the other has ended.
		tcp := x.tcp
		if x.mode == linuxTCP {
			tcp = x.ltcp
		}
		if !isReset(tcp) {
			t.Error("the side with TCP does not learn that the other side has ended")
		}
	}
	return how
}

// isReset reads until the end of a connection, and reports whether the end is a reset.
// Data may arrive before it.
func isReset(tcp *simfabric.TCPConn) bool {
	tcp.SetReadDeadline(time.Now().Add(agreeLimit))
	_, err := io.Copy(io.Discard, tcp)
	return !isTimeout(err)
}

// plain sends data both ways over TCP: each program gets exactly what the other one sent.
func (x *ending) plain(t *testing.T) {
	want := map[*simfabric.TCPConn][]byte{x.tcp: bedtest.Pattern(1, 1000), x.ltcp: bedtest.Pattern(2, 1000)}
	var wg sync.WaitGroup
	for from, to := range map[*simfabric.TCPConn]*simfabric.TCPConn{x.tcp: x.ltcp, x.ltcp: x.tcp} {
		wg.Go(func() {
			_, _ = from.Write(want[from])
			_ = from.CloseWrite()
		})
		wg.Go(func() {
			to.SetReadDeadline(time.Now().Add(time.Minute))
			got, err := io.ReadAll(to)
			if err != nil || !bytes.Equal(got, want[from]) {
				t.Errorf("over TCP came %d bytes, %x... (%v), want %d, %x...", len(got), got[:min(len(got), 12)], err, len(want[from]), want[from][:12])
			}
		})
	}
	wg.Wait()
}
