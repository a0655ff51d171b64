// SPDX-License-Identifier: Apache-2.0

package engine_test

import (
	"errors"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/engine"
	"smcr/userstack/simfabric"
)

// virtually runs f with a loop in virtual time, and looks for what is left.
func virtually(t *testing.T, cfg simfabric.Config, spin time.Duration, f func(t *testing.T, w *simfabric.World, l *simfabric.Loop)) {
	synctest.Test(t, func(t *testing.T) {
		w := simfabric.New(cfg)
		l := w.Host("A", simfabric.NetDev{Name: "eth0"}).NewLoop(spin)
		f(t, w, l)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if got := w.Objects(); got != (simfabric.Objects{}) {
			t.Errorf("left: %+v", got)
		}
		w.Close()
	})
}

// TestVirtualRound: the rounds of a loop in virtual time are those of a real one:
// events, tasks, last tasks, and idle tasks when their time has come.
func TestVirtualRound(t *testing.T) {
	for _, spin := range []time.Duration{0, engine.DefaultSpin} {
		virtually(t, simfabric.Config{Seed: 1}, spin, func(t *testing.T, _ *simfabric.World, l *simfabric.Loop) {
			sock, prog := l.Pair(1000)
			defer sock.Close()
			defer prog.Close()
			synctest.Wait()
			time.Sleep(time.Second) // what the new socket has to tell
			synctest.Wait()
			var got []string
			start := time.Now()
			var slept time.Duration
			idle := l.IdleTask(func() { got, slept = append(got, "idle"), time.Since(start) })
			last := l.LastTask(func() { got = append(got, "last") })
			task := l.Task(func() { got = append(got, "task"); last.Schedule() })
			sock.Hook(func(readable, _, _ bool) {
				if readable {
					got = append(got, "event")
					idle.Schedule()
					last.Schedule()
					task.Schedule()
					task.Schedule() // once
				}
			})
			if n, err := prog.Write([]byte("x")); n != 1 || err != nil {
				t.Fatalf("%d, %v", n, err)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if want := []string{"event", "task", "last", "idle"}; !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
			if want := 100 * time.Microsecond; slept < want || slept > 2*want {
				t.Errorf("idle after %v, want %v", slept, want)
			}
		})
	}
}

// TestVirtualWake: a task that is scheduled at any moment runs, also while the
// thread of the loop is held up between a round and its sleep.
func TestVirtualWake(t *testing.T) {
	virtually(t, simfabric.Config{Seed: 2, Stall: 10 * time.Microsecond}, 0, func(t *testing.T, _ *simfabric.World, l *simfabric.Loop) {
		var n atomic.Int64
		task := l.Task(func() { n.Add(1) })
		ran := func() int { synctest.Wait(); return int(n.Load()) }
		for i := range 2000 {
			task.Schedule()
			time.Sleep(time.Duration(1+i%30) * time.Microsecond / 3)
		}
		time.Sleep(time.Second)
		if n := ran(); n < 500 {
			t.Errorf("%d rounds", n)
		}
		for range 500 {
			before := ran()
			task.Schedule()
			time.Sleep(time.Millisecond)
			if n := ran() - before; n != 1 {
				t.Fatalf("the task ran %d times", n)
			}
		}
	})
}

// TestVirtualWatch: descriptors are for loops of the real time.
func TestVirtualWatch(t *testing.T) {
	virtually(t, simfabric.Config{}, 0, func(t *testing.T, _ *simfabric.World, l *simfabric.Loop) {
		if _, err := l.Watch(0, unix.EPOLLIN, func(uint32) {}); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v", err)
		}
		l.Sync()
		in := false
		l.Task(func() { l.Sync(); in = true }).Schedule()
		synctest.Wait()
		if !in {
			t.Error("Sync in the loop waits for itself")
		}
	})
}

// TestVirtualClose: a Socket of a model closes it, and ends who waits.
func TestVirtualClose(t *testing.T) {
	virtually(t, simfabric.Config{}, 0, func(t *testing.T, w *simfabric.World, l *simfabric.Loop) {
		sock, prog := l.Pair(10)
		rc, err := sock.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan error, 1)
		go func() {
			got <- rc.Read(func(uintptr) bool { readable, _, _ := sock.Pending(); return readable })
		}()
		synctest.Wait()
		if n := w.Objects().Sockets; n != 1 {
			t.Errorf("%d sockets", n)
		}
		if err := sock.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err == nil {
			t.Error("the read that waited has no error")
		}
		if _, err := prog.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("write: %v", err)
		}
	})
}
