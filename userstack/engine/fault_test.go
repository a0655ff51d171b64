// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bytes"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/guard"
	"smcr/internal/testing/testkind"
)

// guarded returns a loop whose panics are counted, and the log of the guard. The log must be
// read with the loop at rest.
func guarded(t *testing.T) (l *Loop, panics *atomic.Int32, log *bytes.Buffer) {
	l = newLoop(t, 0)
	panics, log = new(atomic.Int32), new(bytes.Buffer)
	l.SetGuard(&guard.Guard{Log: slog.New(slog.NewTextHandler(log, nil)), Count: func() { panics.Add(1) }})
	return l, panics, log
}

// once checks that one panic was counted and logged, with its stack.
func once(t *testing.T, l *Loop, panics *atomic.Int32, log *bytes.Buffer) {
	t.Helper()
	l.Sync()
	if n := panics.Load(); n != 1 {
		t.Errorf("%d panics counted, want 1", n)
	}
	if s := log.String(); strings.Count(s, "stack=") != 1 || !strings.Contains(s, "fault_test.go") {
		t.Errorf("the log must have the stack once:\n%s", s)
	}
}

// TestPanicInTask: after a panic in a task, the other tasks of the round run, and the task
// may run again.
func TestPanicInTask(t *testing.T) {
	testkind.System(t)
	l, panics, log := guarded(t)
	done := make(chan struct{}, 3)
	var first sync.Once
	bad := l.Task(func() {
		first.Do(func() { panic("planted") })
		done <- struct{}{}
	})
	good := l.Task(func() { done <- struct{}{} })
	last := l.LastTask(func() { done <- struct{}{} })
	l.Task(func() { bad.Schedule(); good.Schedule(); last.Schedule() }).Schedule() // in one round
	await(t, "the task behind it", done)
	await(t, "the last task", done)
	bad.Schedule()
	await(t, "the task again", done)
	once(t, l, panics, log)
}

// TestPanicInWatch: after a panic in the function of a Watch, the descriptor is not watched
// any more, and others are.
func TestPanicInWatch(t *testing.T) {
	testkind.System(t)
	l, panics, log := guarded(t)
	bad, good := socketpair(t), socketpair(t)
	var calls atomic.Int32
	w, err := l.Watch(bad[0], unix.EPOLLIN, func(uint32) {
		calls.Add(1)
		panic("planted") // the data stays, so epoll would report it again and again
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop(bad[0])
	came := make(chan struct{}, 1)
	g, err := l.Watch(good[0], unix.EPOLLIN, func(uint32) {
		var b [1]byte
		_, _ = unix.Read(good[0], b[:])
		came <- struct{}{}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Stop(good[0])
	for _, fd := range []int{bad[1], good[1], good[1]} {
		if _, err := unix.Write(fd, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "the other watch", came)
	await(t, "the other watch again", came)
	once(t, l, panics, log)
	if n := calls.Load(); n != 1 {
		t.Errorf("the watch that panicked was called %d times", n)
	}
}

// TestPanicInHook: after a panic in the function of Hook, the owner of the socket learns
// it, once, and other sockets go on.
func TestPanicInHook(t *testing.T) {
	testkind.System(t)
	l, panics, log := guarded(t)
	bad, badPeer := newSocket(t, l)
	good, goodPeer := newSocket(t, l)
	fault, came := make(chan struct{}, 2), make(chan struct{}, 8)
	bad.OnFault(func() { fault <- struct{}{} })
	bad.Hook(func(_, _, _ bool) { panic("planted") })
	good.OnFault(func() { t.Error("the other socket has a fault") })
	good.Hook(func(readable, _, _ bool) {
		if readable {
			came <- struct{}{}
		}
	})
	for _, fd := range []int{badPeer, goodPeer} {
		if _, err := unix.Write(fd, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "the fault", fault)
	await(t, "the other socket", came)
	if _, err := unix.Write(badPeer, []byte("x")); err != nil {
		t.Fatal(err)
	}
	once(t, l, panics, log)
	if len(fault) != 0 {
		t.Error("the fault was reported twice")
	}
	if err := bad.Close(); err != nil {
		t.Error(err)
	}
}

// TestPanicInDriver: a panic in a task that a goroutine runs in place of the loop's thread
// does not reach the goroutine.
func TestPanicInDriver(t *testing.T) {
	testkind.System(t)
	l, panics, log := guarded(t)
	done := make(chan struct{}, 1)
	bad := l.LastTask(func() { panic("planted") })
	good := l.LastTask(func() { done <- struct{}{} })
	l.Enter()
	bad.Schedule()
	good.Schedule()
	l.Leave()
	await(t, "the other task", done)
	once(t, l, panics, log)
}
