// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
	"smcr/nl"
	"smcr/smc"
	"smcr/userstack"
	"smcr/userstack/wire"
)

// Bounds. Each is many times what an idle machine needs.
const (
	connectTime = testkind.Patience // for an honest connection
	echoTime    = testkind.Patience // for honest data to come back
	settleTime  = testkind.Patience // until what has ended is given back
)

// echoPort is where each victim serves.
const echoPort = 7777

// eid is the enterprise ID that all stacks have.
var eid = mustEID(userstack.DefaultUEID)

func mustEID(s string) wire.EID {
	id, err := wire.ParseEID(s)
	if err != nil {
		panic(err)
	}
	return id
}

// some returns a part of a table of attacks in the short form of a test, and else all.
func some[T any](all []T) []T {
	if !testing.Short() {
		return all
	}
	var part []T
	for i := 0; i < len(all); i += 4 {
		part = append(part, all[i])
	}
	return part
}

// victim is a host with a stack, and a program that sends back what it receives.
type victim struct {
	*netnstest.Host
	stack *userstack.Stack
	log   *logBuffer
	l     net.Listener

	plain atomic.Int64 // connections that stayed TCP
}

// lab is two victims and an attacker on one LAN.
type lab struct {
	t    *testing.T
	A, B *victim
	C    *Host
	// honest are the connections of the victims with each other.
	honest *traffic
}

// newLab starts the victims and their traffic. At the end of the test, all that they took
// must be given back.
func newLab(t *testing.T, cfg userstack.Config) *lab {
	t.Helper()
	l := newLabOf(t, cfg)
	l.honest = newTraffic(t, l.A, l.B)
	return l
}

// newLabOf is newLab for victims that have not spoken with each other yet.
func newLabOf(t *testing.T, cfg userstack.Config) *lab {
	t.Helper()
	lan := netnstest.NewLAN(t, 3)
	before := inUse(t)
	t.Cleanup(func() { wantGivenBack(t, before) })
	l := &lab{t: t}
	l.A, l.B = newVictim(t, lan.Hosts[0], cfg), newVictim(t, lan.Hosts[1], cfg)
	var err error
	if l.C, err = Open(lan.Hosts[2]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.must(l.C.Close()) })
	return l
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Error(err)
	}
}

func newVictim(t *testing.T, h *netnstest.Host, cfg userstack.Config) *victim {
	t.Helper()
	v := &victim{Host: h, log: &logBuffer{}}
	cfg.Log = slog.New(slog.NewTextHandler(v.log, &slog.HandlerOptions{Level: slog.LevelInfo}))
	err := h.Do(func() (err error) {
		if v.stack, err = userstack.New(cfg); err != nil {
			return err
		}
		lc := userstack.ListenConfig{Stack: v.stack, Declined: func(net.Addr, *userstack.DeclineError) { v.plain.Add(1) }}
		v.l, err = lc.Listen(context.Background(), "tcp4", v.address().String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := v.stack.OptionError(); err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { v.serve(&serving) })
	t.Cleanup(func() {
		if err := errors.Join(v.l.Close(), v.stack.Close()); err != nil {
			t.Error(err)
		}
		serving.Wait()
		if t.Failed() {
			t.Logf("log of %s:\n%s", h.Name, v.log)
		}
	})
	return v
}

// address is where the victim serves.
func (v *victim) address() netip.AddrPort { return netip.AddrPortFrom(v.Links[0].IPv4, echoPort) }

// serve sends back what comes.
func (v *victim) serve(wg *sync.WaitGroup) {
	for {
		c, err := v.l.Accept()
		if err != nil {
			return
		}
		wg.Go(func() {
			defer c.Close()
			_, _ = io.Copy(c, c)
		})
	}
}

// groups returns the link groups of the victim with a peer ID, or all of them.
func (v *victim) groups(t testing.TB, peer *smc.PeerID) []nl.LinkGroup {
	t.Helper()
	list, err := v.stack.Control().LinkGroups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list, func(g nl.LinkGroup) bool { return peer != nil && g.PeerID != *peer })
}

// links returns the links of the victim.
func (v *victim) links(t testing.TB) []nl.Link {
	t.Helper()
	list, err := v.stack.Control().Links(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// peerID returns the peer ID of the victim as another one knows it.
func (v *victim) peerID(t testing.TB, to *victim) smc.PeerID {
	t.Helper()
	for _, g := range to.groups(t, nil) {
		if g.Peer == v.Addr() {
			return g.PeerID
		}
	}
	t.Fatalf("%s has no link group with %s", to.Name, v.Name)
	return smc.PeerID{}
}

// dial connects to another victim.
func (v *victim) dial(to *victim) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), connectTime)
	defer cancel()
	var c net.Conn
	err := v.Do(func() (err error) {
		c, err = v.stack.DialContext(ctx, "tcp4", to.address().String())
		return err
	})
	return c, err
}

// dialSMC connects to another victim, by SMC-R.
func (v *victim) dialSMC(t testing.TB, to *victim) *userstack.Conn {
	t.Helper()
	nc, err := v.dial(to)
	if err != nil {
		t.Fatalf("%s to %s: %v", v.Name, to.Name, err)
	}
	c, ok := userstack.AsConn(nc)
	if !ok {
		nc.Close()
		t.Fatalf("%s to %s: the connection is TCP", v.Name, to.Name)
	}
	return c
}

// unharmed checks that the victims work as before: every connection lives, and the next
// ones use the same link groups.
func (l *lab) unharmed(t *testing.T) {
	t.Helper()
	tr := l.honest
	tr.progress(t, 2)
	for _, d := range [][2]*victim{{l.A, l.B}, {l.B, l.A}} {
		c := d[0].dialSMC(t, d[1])
		if err := exchange(c, rand.New(rand.NewPCG(2, 3)), 100_000); err != nil {
			t.Errorf("%s to %s: %v", d[0].Name, d[1].Name, err)
		}
		c.Close()
	}
	for _, v := range []*victim{l.A, l.B} {
		have := v.groups(t, nil)
		for _, g := range tr.groups[v] {
			if !slices.ContainsFunc(have, func(h nl.LinkGroup) bool { return h.ID == g.ID && h.PeerID == g.PeerID }) {
				t.Errorf("%s: link group %v with %s has ended", v.Name, g.ID, g.Peer)
			}
		}
		honest := 0
		for _, g := range have {
			if g.Peer != l.C.Addr() {
				honest++
			}
		}
		if honest != 2 { // one as client, one as server
			t.Errorf("%s has %d link groups with the other victim, want 2", v.Name, honest)
		}
		st, err := v.stack.Control().Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if st.Panics != 0 {
			t.Errorf("%s: %d panics", v.Name, st.Panics)
		}
	}
}

// finish ends the traffic, and wants that nothing of it remains.
func (l *lab) finish() {
	l.t.Helper()
	for i, f := range l.honest.conns {
		close(f.stop)
		if err := <-f.ended; err != nil {
			l.t.Errorf("honest connection %d: %v", i, err)
		}
		l.must(f.Close())
	}
	l.wantIdle()
}

// wantIdle waits until the link groups of the victims with each other have no connection.
func (l *lab) wantIdle() {
	l.t.Helper()
	for _, v := range []*victim{l.A, l.B} {
		err := netnstest.Until(settleTime, func() error {
			for _, g := range v.groups(l.t, nil) {
				if g.Peer != l.C.Addr() && g.Conns > 0 {
					return fmt.Errorf("%s: %d connections in link group %v with %s", v.Name, g.Conns, g.ID, g.Peer)
				}
			}
			return nil
		})
		if err != nil {
			l.t.Error(err)
		}
	}
}

// resources is what the process has.
type resources struct{ descriptors, goroutines int }

func inUse(t testing.TB) resources {
	t.Helper()
	return resources{descriptors(t), runtime.NumGoroutine()}
}

// descriptors counts the open descriptors of the process, but for the page map that the
// pools of memory share and keep.
func descriptors(t testing.TB) (n int) {
	t.Helper()
	for _, to := range openFiles(t) {
		if !strings.HasSuffix(to, "/pagemap") {
			n++
		}
	}
	return n
}

// openFiles returns what the descriptors of the process refer to.
func openFiles(t testing.TB) (list []string) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		to, err := os.Readlink("/proc/self/fd/" + fd.Name())
		if err == nil { // else it is the descriptor of the folder
			list = append(list, to)
		}
	}
	return list
}

// wantGivenBack waits until the process has no more than before.
func wantGivenBack(t *testing.T, before resources) {
	t.Helper()
	err := netnstest.Until(settleTime, func() error {
		runtime.GC() // descriptors of connections that nobody closed
		if now := inUse(t); now.descriptors > before.descriptors || now.goroutines > before.goroutines {
			return fmt.Errorf("%d descriptors and %d goroutines, %d and %d before", now.descriptors, now.goroutines, before.descriptors, before.goroutines)
		}
		return nil
	})
	if err != nil {
		b := make([]byte, 64<<10)
		t.Errorf("%v\ndescriptors: %q\ngoroutines:\n%s", err, openFiles(t), b[:runtime.Stack(b, true)])
	}
}

// logBuffer is the log of a victim.
type logBuffer struct{ netnstest.Buffer }

// count returns how many lines of the log have all the texts.
func (l *logBuffer) count(texts ...string) (n int) {
lines:
	for line := range strings.Lines(l.String()) {
		for _, s := range texts {
			if !strings.Contains(line, s) {
				continue lines
			}
		}
		n++
	}
	return n
}

// wantLog waits for a line of the log.
func (v *victim) wantLog(t testing.TB, texts ...string) {
	t.Helper()
	if err := netnstest.Until(settleTime, func() error {
		if v.log.count(texts...) == 0 {
			return fmt.Errorf("%s: no line of the log with %q", v.Name, texts)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
