// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// mailbox is a socketpair of which a loop reads one end: it wakes who waits for a
// message, as a connection does.
type mailbox struct {
	fds  [2]int
	came chan struct{}
}

func newMailbox(t testing.TB, l *Loop) *mailbox {
	m := &mailbox{fds: socketpair(t), came: make(chan struct{}, 1)}
	b := make([]byte, 64)
	w, err := l.Watch(m.fds[0], unix.EPOLLIN, func(uint32) {
		if n, _ := unix.Read(m.fds[0], b); n > 0 {
			select {
			case m.came <- struct{}{}:
			default:
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Stop(m.fds[0]); l.Sync() })
	return m
}

var letter = []byte("x")

func (m *mailbox) send(t testing.TB) {
	if _, err := unix.Write(m.fds[1], letter); err != nil {
		t.Error(err)
	}
}

func (m *mailbox) ready() bool { return len(m.came) > 0 }

// wait waits for a message as a connection waits for data.
func (m *mailbox) wait(t testing.TB, w *Waiter) (drove bool) {
	if drove = w.Drive(m.ready); !drove {
		defer w.Served()
	}
	select {
	case <-m.came:
	case <-time.After(testkind.Patience):
		t.Error("no message within", testkind.Patience)
	}
	return drove
}

// TestDrive: a goroutine that is the only one to wait finds the event itself, also
// if it has slept, and the thread has the loop again when it stays away.
func TestDrive(t *testing.T) {
	testkind.System(t)
	l := newLoop(t, 5*time.Millisecond)
	m := newMailbox(t, l)
	w := l.NewWaiter()
	m.send(t)
	m.wait(t, w)
	// Where others need the core, the thread may be in epoll, and keeps the loop.
	drove := false
	for try := 0; try < 1000 && !drove; try++ {
		// Real time: a goroutine is alone if nobody else was served for that long.
		time.Sleep(2 * alone)
		m.send(t)
		drove = m.wait(t, w)
	}
	if !drove {
		t.Error("a goroutine that is alone never had the loop")
	}
	// Nobody drives: the thread is back soon.
	for range 5 {
		m.send(t)
		await(t, "the thread", m.came)
	}
	var slept bool
	for try := 0; try < 1000 && !slept; try++ {
		go func() {
			// Real time: the other goroutine falls asleep meanwhile, probably.
			time.Sleep(l.spin + sleepMost/2)
			m.send(t)
		}()
		slept = m.wait(t, w)
	}
	if !slept {
		t.Error("no goroutine ever found an event in its sleep")
	}
}

// wantAsleep waits until the loop sleeps.
func wantAsleep(t testing.TB, l *Loop) {
	t.Helper()
	testkind.Eventually(t, "the loop does not sleep", func() (any, bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.sleeping, l.sleeping
	})
}

// TestPoke: what is ready without an event ends a drive.
func TestPoke(t *testing.T) {
	testkind.System(t)
	l := newLoop(t, DefaultSpin)
	w := l.NewWaiter()
	for range 300 {
		var over atomic.Bool
		done := make(chan struct{})
		go func() {
			defer close(done)
			for !over.Load() {
				w.Drive(over.Load)
			}
		}()
		// Real time: a poke comes at any moment of a drive.
		time.Sleep(time.Duration(rand.IntN(300)) * time.Microsecond)
		over.Store(true)
		w.Poke()
		await(t, "the driver", done)
	}
}

// TestHelp: tasks of a section run before Leave returns, if the loop sleeps, and
// run anyway if it does not. What they schedule runs too.
func TestHelp(t *testing.T) {
	testkind.System(t)
	l := newLoop(t, 0)
	for i := range 2000 {
		if i%50 == 0 {
			wantAsleep(t, l)
		}
		l.mu.Lock()
		asleep := l.sleeping
		l.mu.Unlock()
		ran := make(chan struct{})
		l.Enter()
		l.Task(func() { l.LastTask(func() { l.Task(func() { close(ran) }).Schedule() }).Schedule() }).Schedule()
		l.Leave()
		if asleep { // and nothing wakes it
			select {
			case <-ran:
			default:
				t.Fatal("the section did not run its tasks")
			}
		}
		await(t, "a task", ran)
	}
	// A task that the section leaves for idle times is run by the thread.
	ran := make(chan struct{})
	l.Enter()
	l.IdleTask(func() { close(ran) }).Schedule()
	l.Leave()
	await(t, "the idle task", ran)
	// Sync within a section does not wait for itself.
	l.Enter()
	l.Sync()
	l.Leave()
}

// TestShared: with several that are served in turn the thread drives, and none of
// them waits for another.
func TestShared(t *testing.T) {
	testkind.System(t)
	l := newLoop(t, DefaultSpin)
	var wg sync.WaitGroup
	for range 4 {
		m, w := newMailbox(t, l), l.NewWaiter()
		wg.Go(func() {
			for range 500 {
				m.send(t)
				m.wait(t, w)
			}
		})
	}
	wg.Wait()
}

// TestDriveUnderFire has goroutines wait, schedule, help and poke in all
// combinations for a while: each wait ends and each task runs.
func TestDriveUnderFire(t *testing.T) {
	testkind.System(t)
	for _, spin := range []time.Duration{time.Nanosecond, DefaultSpin} {
		l := newLoop(t, spin)
		var stop atomic.Bool
		var wg sync.WaitGroup
		w := l.NewWaiter() // of two goroutines, as of a connection's reader and writer
		for i := range 4 {
			m, own := newMailbox(t, l), w
			if i >= 2 {
				own = l.NewWaiter()
			}
			next := make(chan struct{}, 1)
			wg.Go(func() { // sends
				for range next {
					if rand.IntN(8) == 0 {
						// Real time: a message comes at any moment of a wait.
						time.Sleep(time.Duration(rand.IntN(1500)) * time.Microsecond)
					}
					m.send(t)
				}
			})
			wg.Go(func() {
				defer close(next)
				for !stop.Load() {
					next <- struct{}{}
					m.wait(t, own)
				}
			})
		}
		var scheduled, ran atomic.Int64
		for help := range 2 {
			wg.Go(func() {
				for !stop.Load() {
					if help == 1 {
						l.Enter()
					}
					scheduled.Add(1)
					done := make(chan struct{})
					l.LastTask(func() { ran.Add(1); close(done) }).Schedule()
					if help == 1 {
						l.Leave()
					}
					if rand.IntN(4) == 0 {
						w.Poke()
						l.Attend()
					}
					await(t, "a task", done)
				}
			})
		}
		// Real time: how long the load lasts.
		time.Sleep(700 * time.Millisecond)
		stop.Store(true)
		wg.Wait()
		if scheduled.Load() != ran.Load() {
			t.Errorf("%d tasks ran of %d", ran.Load(), scheduled.Load())
		}
	}
}

// TestDriveClosed: Close ends drives, and waits for them.
func TestDriveClosed(t *testing.T) {
	testkind.System(t)
	for range 200 {
		l, err := New(time.Second)
		if err != nil {
			t.Fatal(err)
		}
		m, w := newMailbox(t, l), l.NewWaiter()
		done := make(chan struct{})
		go func() {
			defer close(done)
			for w.Drive(m.ready) {
				<-m.came
			}
		}()
		if n := rand.IntN(3); n > 0 {
			m.send(t)
			// Real time: the end comes at any moment of a drive.
			time.Sleep(time.Duration(rand.IntN(n*500)) * time.Microsecond)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		await(t, "the driver", done)
		if w.Drive(m.ready) {
			t.Error("a closed loop was driven")
		}
		l.Enter()
		l.Leave()
		l.Attend()
		w.Poke()
	}
}

// TestDriveAllocs: a wait allocates nothing.
func TestDriveAllocs(t *testing.T) {
	testkind.System(t)
	l := newLoop(t, DefaultSpin)
	m, w := newMailbox(t, l), l.NewWaiter()
	ready := m.ready
	if n := testing.AllocsPerRun(1000, func() {
		l.Enter()
		m.send(t)
		l.Leave()
		w.Drive(ready)
		<-m.came
	}); n > 0.1 {
		t.Errorf("%.2f allocations a wait", n)
	}
}
