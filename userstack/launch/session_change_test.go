// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"io"
	"net"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
)

// handOver tells the launcher that another process is the stack.
func (x *stacks) handOver() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.server.HandOver()
}

// TestChangeOfStack hands over from one stack to the next, several times. New connections use
// the next stack as soon as the launcher has a session with it, and until then the one before.
// All listening sockets are marked in it. An open connection stays with its stack, whose
// session ends after the last one.
func TestChangeOfStack(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	x := &stacks{t: t}
	f := &fakeStack{}
	m, err := x.open(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	p := start(t, Config{Broker: m, Redial: x.redial, Argv: []string{
		"timeout", "120", "python3", "-u", "-c", obedient, echoServer(t, "tcp4", "127.0.0.1:0", "")}})
	port := p.line(t)
	other := ask(t, port, "l") // a connection that is open keeps the server of its port busy
	works := func(when string, f *fakeStack) {
		t.Helper()
		a, c := f.accepts.Load(), f.connects.Load()
		for _, what := range []string{"e", "o"} {
			if got := ask(t, port, what); got != what {
				t.Errorf("%s: %q", when, got)
			}
		}
		if a, c = f.accepts.Load()-a, f.connects.Load()-c; a != 2 || c != 1 {
			t.Errorf("%s: %d connections accepted and %d made, want 2 and 1", when, a, c)
		}
	}
	for n := range 3 {
		works("before", f)
		accepted := f.accepts.Load()
		held, err := net.Dial("tcp4", "127.0.0.1:"+other)
		if err != nil {
			t.Fatal(err)
		}
		until(t, "accepted", func() bool { return f.accepts.Load() > accepted && f.active.Load() == 1 })
		x.handOver()
		works("no session with the next stack yet", f)
		next := &fakeStack{}
		x.provide(next)
		until(t, "the listening sockets marked in the next stack", func() bool { return next.listens.Load() == 2 })
		works("after", next)
		// The connection continues over the stack before, to its end.
		if n := f.active.Load(); n != 1 {
			t.Errorf("%d connections of the stack before, want the one that is open", n)
		}
		_ = held.SetDeadline(time.Now().Add(patience))
		if _, err := held.Write([]byte("h")); err != nil {
			t.Error(err)
		}
		if b, err := io.ReadAll(held); string(b) != "h" || err != nil {
			t.Errorf("stack %d: the open connection: %q, %v", n, b, err)
		}
		_ = held.Close()
		until(t, "the connection has ended", func() bool { return f.active.Load() == 0 })
		f = next
	}
	ask(t, port, "q")
	if res := p.wait(t); res.stats.TCP[ReasonNoService] != 0 {
		t.Errorf("connections without a stack: %v", res.stats.TCP)
	}
}

// TestChangeDies has the stack that hands over die before the launcher has a session with the
// next one: connections are TCP until then.
func TestChangeDies(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	x := &stacks{t: t}
	m, err := x.open(&fakeStack{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	p := start(t, Config{Broker: m, Redial: x.redial, Argv: []string{
		"timeout", "120", "python3", "-u", "-c", obedient, echoServer(t, "tcp4", "127.0.0.1:0", "")}})
	port := p.line(t)
	x.handOver()
	until(t, "the launcher looks for the next stack", func() bool { return x.dials.Load() > 0 })
	x.kill()
	if got := ask(t, port, "o"); got != "o" {
		t.Errorf("without a stack: %q", got)
	}
	next := &fakeStack{}
	x.provide(next)
	until(t, "the listening socket marked in the next stack", func() bool { return next.listens.Load() == 1 })
	if got := ask(t, port, "e"); got != "e" || next.accepts.Load() != 1 {
		t.Errorf("with the next stack: %q, %d connections", got, next.accepts.Load())
	}
	ask(t, port, "q")
	if res := p.wait(t); res.stats.TCP[ReasonNoService] == 0 {
		t.Error("no connection was made without a stack")
	}
}
