// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"smcr/internal/testing/built"
	"smcr/internal/testing/netnstest"
	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/smc"
)

// Expressions that are true when the page says this about the stack "user".
const (
	saysRestarted = `!document.getElementById('trouble').hidden && document.getElementById('status').textContent === 'Live' &&
		/^The user stack was restarted at \d\d:\d\d:\d\d\. Its counters began again\.$/.test(document.getElementById('trouble').textContent)`
	saysTakenOver = `!document.getElementById('trouble').hidden && document.getElementById('status').textContent === 'Live' &&
		/^Another process has taken over the user stack at \d\d:\d\d:\d\d\. Its counters go on\.$/.test(document.getElementById('trouble').textContent)`
	saysNothing = `document.getElementById('trouble').hidden && document.getElementById('status').textContent === 'Live'`
)

// TestBrowserRestart restarts the stack that serves the page. The page, which nobody
// touches, waits for the next one and says what has happened, for a while.
func TestBrowserRestart(t *testing.T) {
	if testing.Short() {
		t.Skip("runs Chromium: part of make test-all")
	}
	netnstest.Require(t, "chromium")
	t.Parallel()
	dir := t.TempDir()
	if err := built.Programs(t.Context(), dir, "smcr/cmd/smcr"); err != nil {
		t.Fatal(err)
	}
	smcr := filepath.Join(dir, "smcr")
	pair := netnstest.New(t, netnstest.Options{})
	const address = "127.0.0.1:9791"
	serve := func() *netnstest.Process {
		t.Helper()
		p := pair.A.Go(t, smcr, "serve", "--metrics", address)
		if err := p.WaitOutput("msg=metrics", answerTime); err != nil {
			t.Fatal(err, p.Log())
		}
		return p
	}
	stack := serve()
	b := newBrowser(t, pair.A, "http://"+address+"/")
	b.await(saysNothing)
	b.eval(`globalThis.loaded = 'once'`)

	if err := stack.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = stack.Wait(answerTime) // with the status of an interrupt
	b.await(`document.getElementById('status').textContent === 'No answer' && !document.getElementById('trouble').hidden &&
		document.getElementById('trouble').textContent.includes('nobody answers at this address. What you see is older.')`)
	serve()
	b.await(saysRestarted)
	keep(t, "restarted", b.shoot())
	b.eval(`replaced.time = new Date(0)`) // as if it was long ago
	b.await(saysNothing)
	if got := b.eval(`globalThis.loaded`); got != `"once"` {
		t.Errorf("the page was loaded again: %s", got)
	}
	b.wantNoComplaints()
}

// TestBrowserReplaced: the page tells a restart from a takeover, after which the counters go
// on. It does so also if the stack was missing meanwhile beside another one, and says
// nothing about stacks that have handed over.
func TestBrowserReplaced(t *testing.T) {
	if testing.Short() {
		t.Skip("runs Chromium: part of make test-all")
	}
	netnstest.Require(t, "chromium")
	t.Parallel()
	process := func(pid uint32, bytes uint64) nl.Control {
		s := nltest.State{SysInfo: nl.SysInfo{Stack: "smcr", PID: pid, LocalHost: "host"}}
		s.Stats.SMCR.RXBytes = bytes
		s.Fallbacks = nl.Fallbacks{ClientTotal: 1, Reasons: []nl.Fallback{{Reason: uint32(smc.DiagMem), Count: 1}}}
		return nltest.NewFake(s)
	}
	kernel := nl.Backend{Name: "kernel", Control: process(0, 1000)}
	var now atomic.Pointer[nl.Multi]
	set := func(stacks ...nl.Backend) {
		for i := range stacks {
			stacks[i].Control = open{stacks[i].Control}
		}
		now.Store((*nl.Multi)(&stacks))
	}
	user := func(pid uint32, bytes uint64) nl.Backend {
		return nl.Backend{Name: "user", Control: process(pid, bytes)}
	}
	ending := func(pid uint32) nl.Backend { return nl.Backend{Name: "ending-0", Control: process(pid, 5)} }
	set(kernel, user(100, 1000))
	h := New(Config{Dial: func(context.Context) (nl.Multi, error) { return *now.Load(), nil }, NetDev: netdev})
	h.(*handler).every = shortRefresh
	pair := netnstest.New(t, netnstest.Options{})
	b := newBrowser(t, pair.A, serveOn(t, pair.A, h))
	shows := func(stacks int) {
		t.Helper()
		b.await(`document.querySelectorAll('#stacks dl').length === ` + string(rune('0'+stacks)))
	}
	shows(2)
	b.await(saysNothing)

	set(kernel, user(101, 1500), ending(100))
	b.await(saysTakenOver)
	set(kernel, user(102, 7))
	b.await(saysRestarted)
	b.eval(`replaced.time = new Date(0)`)
	b.await(saysNothing)

	set(kernel, user(102, 7), ending(101))
	shows(3)
	b.await(saysNothing)

	set(kernel)
	shows(1)
	b.await(saysNothing)
	set(kernel, user(103, 3))
	b.await(saysRestarted)
	b.wantNoComplaints()
}
