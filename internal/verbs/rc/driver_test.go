// SPDX-License-Identifier: Apache-2.0

package rc

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// pipe returns a pipe whose ends are closed by t.Cleanup.
func pipe(t *testing.T) (r, w int) {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p[0]); unix.Close(p[1]) })
	return p[0], p[1]
}

func testDriver(t *testing.T) *driver {
	t.Helper()
	d, err := newDriver()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.close)
	return d
}

// watchPipe lets d count the bytes that can be read from a pipe.
func watchPipe(t *testing.T, d *driver) (n *atomic.Int64, write func(), stop func()) {
	t.Helper()
	r, w := pipe(t)
	n = new(atomic.Int64)
	stop, err := d.WatchReadable(r, func() {
		var b [16]byte
		got, _ := unix.Read(r, b[:])
		n.Add(int64(max(got, 0)))
	})
	if err != nil {
		t.Fatal(err)
	}
	return n, func() {
		if _, err := unix.Write(w, []byte{1}); err != nil {
			t.Error(err)
		}
	}, stop
}

// TestDriverServes: the goroutine reads while nobody waits, also after it has slept, and
// runs a scheduled function once.
func TestDriverServes(t *testing.T) {
	testkind.System(t)
	d := testDriver(t)
	n, write, stop := watchPipe(t, d)
	var sent, idle atomic.Int64
	send, whenIdle := d.AtEnd(func() { sent.Add(1) }), d.WhenIdle(func() { idle.Add(1) })
	for i := range int64(3) {
		// Real time: probably it sleeps then.
		time.Sleep(2 * quiet)
		write()
		testkind.Eventually(t, "a byte is not read", func() (any, bool) { return n.Load(), n.Load() == i+1 })
		// Real time: probably it sleeps then.
		time.Sleep(2 * quiet)
		send()
		whenIdle()
		testkind.Eventually(t, "a task does not run", func() (any, bool) {
			return []int64{sent.Load(), idle.Load()}, sent.Load() == i+1 && idle.Load() == i+1
		})
	}
	stop()
	write()
	send()
	testkind.Eventually(t, "a task does not run", func() (any, bool) { return sent.Load(), sent.Load() == 4 })
	if n.Load() != 3 {
		t.Error("a descriptor is read after its watch was stopped")
	}
}

// TestStopWhileBusy: a watch can be stopped while other descriptors are readable in every
// round and nobody reads them, as those of a device that closes.
func TestStopWhileBusy(t *testing.T) {
	testkind.System(t)
	d := testDriver(t)
	var rounds atomic.Int64
	var stops []func()
	for range 2 {
		r, w := pipe(t)
		stop, err := d.WatchReadable(r, func() { rounds.Add(1) })
		if err != nil {
			t.Fatal(err)
		}
		stops = append(stops, stop)
		if _, err := unix.Write(w, []byte{1}); err != nil {
			t.Fatal(err)
		}
	}
	testkind.Eventually(t, "the goroutine is not busy", func() (any, bool) { return rounds.Load(), rounds.Load() > 1000 })
	stopped := make(chan struct{})
	go func() {
		for _, stop := range stops {
			stop()
		}
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(testkind.Patience):
		t.Fatal("a watch is not stopped while another descriptor is readable")
	}
}

// TestDriverHeld: while a caller waits, the caller does all of this, and the goroutine
// does nothing.
func TestDriverHeld(t *testing.T) {
	testkind.System(t)
	d := testDriver(t)
	n, write, _ := watchPipe(t, d)
	var sent, idle int // a data race if the goroutine changed them
	send := d.AtEnd(func() { sent++ })
	whenIdle := d.WhenIdle(func() { idle++ })
	d.run.Lock()
	write()
	send()
	send()
	whenIdle()
	// Real time: nobody runs a round meanwhile.
	time.Sleep(5 * quiet)
	if n.Load() != 0 || sent != 0 {
		t.Error("somebody else runs rounds")
	}
	if err := d.await(t.Context(), testkind.Patience, func() bool { return n.Load() == 1 && idle == 1 }); err != nil {
		t.Error(err)
	}
	if sent != 1 {
		t.Errorf("what was scheduled twice in a round ran %d times", sent)
	}
	d.run.Unlock()
	write()
	testkind.Eventually(t, "nobody reads after the release", func() (any, bool) { return n.Load(), n.Load() == 2 })
}

// TestDriverGivesUp: a wait is bounded.
func TestDriverGivesUp(t *testing.T) {
	d := testDriver(t)
	d.run.Lock()
	defer d.run.Unlock()
	never := func() bool { return false }
	if err := d.await(t.Context(), time.Millisecond, never); !errors.Is(err, ErrNoAnswer) {
		t.Errorf("%v, want %v", err, ErrNoAnswer)
	}
	cause := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := d.await(ctx, testkind.Patience, never); !errors.Is(err, cause) {
		t.Errorf("%v, want %v", err, cause)
	}
}
