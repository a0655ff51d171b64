// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

func newLoop(t testing.TB, spin time.Duration) *Loop {
	t.Helper()
	l, err := New(spin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func await(t testing.TB, what string, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(testkind.Patience):
		t.Fatalf("%s: nothing within %v", what, testkind.Patience)
	}
}

// TestOrder: events come first in a round, then tasks, then last tasks, and idle
// tasks after their time; what a task schedules comes later.
func TestOrder(t *testing.T) {
	testkind.System(t)
	l := newLoop(t, 0)
	l.mu.Lock()
	l.idleMost = 200 * time.Millisecond // later than the rounds
	l.mu.Unlock()
	var got []string
	done := make(chan struct{})
	var task, again, last, idle *Task
	idle = l.IdleTask(func() { got = append(got, "idle"); close(done) })
	last = l.LastTask(func() { got = append(got, "last") })
	again = l.Task(func() { got = append(got, "again"); last.Schedule() })
	task = l.Task(func() { got = append(got, "task"); again.Schedule(); last.Schedule() })
	fds := socketpair(t)
	w, err := l.Watch(fds[0], unix.EPOLLIN, func(uint32) {
		var b [1]byte
		_, _ = unix.Read(fds[0], b[:])
		got = append(got, "event")
		idle.Schedule()
		last.Schedule()
		task.Schedule()
		task.Schedule() // once
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop(fds[0])
	if _, err := unix.Write(fds[1], []byte("x")); err != nil {
		t.Fatal(err)
	}
	await(t, "a round", done)
	l.Sync()
	if want := []string{"event", "task", "last", "again", "last", "idle"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestWake: a task scheduled by anyone at any time runs, whether the loop sleeps,
// spins or is busy.
func TestWake(t *testing.T) {
	testkind.System(t)
	for _, spin := range []time.Duration{0, DefaultSpin} {
		l := newLoop(t, spin)
		var n atomic.Int64
		var wg sync.WaitGroup
		const each = 3000
		for range 4 {
			wg.Go(func() {
				for i := range each {
					ran := make(chan struct{})
					l.Task(func() { n.Add(1); close(ran) }).Schedule()
					select {
					case <-ran:
					case <-time.After(testkind.Patience):
						t.Error("a task did not run")
						return
					}
					if i%100 == 0 {
						// Real time: the loop goes to sleep in some of these pauses.
						time.Sleep(time.Millisecond)
					}
				}
			})
		}
		wg.Wait()
		if n.Load() != 4*each {
			t.Errorf("%d tasks ran, %d were scheduled", n.Load(), 4*each)
		}
	}
}

// TestIdleUnderLoad: tasks for idle times run also where there is none.
func TestIdleUnderLoad(t *testing.T) {
	testkind.System(t)
	l := newLoop(t, 0)
	done := make(chan struct{})
	stop := false
	var busy *Task
	busy = l.Task(func() {
		if !stop {
			busy.Schedule()
		}
	})
	busy.Schedule()
	l.IdleTask(func() { stop = true; close(done) }).Schedule()
	await(t, "the idle task", done)
}

// TestIdleAgain: the loop does not sleep over a task for idle times that another
// one has scheduled.
func TestIdleAgain(t *testing.T) {
	testkind.System(t)
	l := newLoop(t, 0)
	done := make(chan struct{})
	second := l.IdleTask(func() { close(done) })
	l.IdleTask(second.Schedule).Schedule()
	await(t, "the second idle task", done)
}

func TestClosed(t *testing.T) {
	testkind.System(t)
	l := newLoop(t, 0)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != ErrClosed {
		t.Errorf("second Close: %v", err)
	}
	l.Task(func() { t.Error("a task of a closed loop ran") }).Schedule()
	l.Sync()
	fds := socketpair(t)
	if _, err := l.Watch(fds[0], unix.EPOLLIN, func(uint32) {}); err != ErrClosed {
		t.Errorf("Watch: %v", err)
	}
}

// TestStopWaits: after the stop function of WatchReadable nothing is called.
func TestStopWaits(t *testing.T) {
	testkind.System(t)
	l := newLoop(t, DefaultSpin)
	for range 200 {
		fds := socketpair(t)
		var stopped atomic.Bool
		stop, err := l.WatchReadable(fds[0], func() { // readable all the time
			if stopped.Load() {
				t.Error("called after stop")
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Write(fds[1], []byte("x")); err != nil {
			t.Fatal(err)
		}
		stop()
		stopped.Store(true)
	}
	// From within the loop it does not wait for itself.
	done := make(chan struct{})
	fds := socketpair(t)
	var stop func()
	l.Task(func() {
		stop, _ = l.WatchReadable(fds[0], func() {})
		stop()
		close(done)
	}).Schedule()
	await(t, "stop in the loop", done)
}

// TestAllocs: a task that is scheduled again and again allocates nothing.
func TestAllocs(t *testing.T) {
	l := newLoop(t, DefaultSpin)
	ran := make(chan struct{}, 1)
	task := l.Task(func() { ran <- struct{}{} })
	if n := testing.AllocsPerRun(1000, func() {
		task.Schedule()
		<-ran
	}); n > 0.1 {
		t.Errorf("%.2f allocations a task", n)
	}
}

func socketpair(t testing.TB) [2]int {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	})
	return fds
}
