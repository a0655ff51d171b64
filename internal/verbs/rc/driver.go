// SPDX-License-Identifier: Apache-2.0

package rc

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A driver runs the packet I/O of a device (softroce.Poller) in rounds: it reads
// what has arrived and then sends what has become ready.
//
// A test program polls: it looks for a completion again and again until there is
// one. So does this: whoever waits runs the rounds itself, between hold and
// release, and no thread is to be woken between a packet and the program. At
// other times a goroutine runs them.
type driver struct {
	epoll int
	event int // eventfd: ends the sleep of the goroutine
	done  chan struct{}

	run sync.Mutex // held by who runs rounds

	mu      sync.Mutex
	watches map[int32]func()
	send    []*task
	idle    []*task
	asleep  bool // the goroutine does not look at tasks before event is written
	closed  bool

	// Guarded by run.
	due    []*task
	events [16]unix.EpollEvent
	pace   pace
}

// A task is a function to be called once in a round.
type task struct {
	f      func()
	queued bool // guarded by driver.mu
}

// quiet is how long the goroutine looks for more packets before it sleeps.
const quiet = 100 * time.Microsecond

func newDriver() (*driver, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	ev, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(ep)
		return nil, os.NewSyscallError("eventfd", err)
	}
	d := &driver{epoll: ep, event: ev, done: make(chan struct{}), watches: map[int32]func(){}, pace: pace{epoch: time.Now()}}
	if err := d.add(ev); err != nil {
		unix.Close(ep)
		unix.Close(ev)
		return nil, err
	}
	go d.serve()
	return d, nil
}

func (d *driver) add(fd int) error {
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(d.epoll, unix.EPOLL_CTL_ADD, fd, &ev))
}

// close ends the goroutine, after the device was closed.
func (d *driver) close() {
	d.mu.Lock()
	d.closed = true
	d.wake()
	d.mu.Unlock()
	<-d.done
	unix.Close(d.epoll)
	unix.Close(d.event)
}

// wake ends a sleep of the goroutine. mu is held.
func (d *driver) wake() {
	var one = [8]byte{0: 1, 7: 1} // not zero in either byte order
	_, _ = unix.Write(d.event, one[:])
	d.asleep = false
}

// WatchReadable implements softroce.Poller.
func (d *driver) WatchReadable(fd int, take func()) (stop func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.add(fd); err != nil {
		return nil, fmt.Errorf("watch a socket: %w", err)
	}
	d.watches[int32(fd)] = take
	return func() {
		d.mu.Lock()
		delete(d.watches, int32(fd))
		_ = unix.EpollCtl(d.epoll, unix.EPOLL_CTL_DEL, fd, nil)
		d.mu.Unlock()
		d.run.Lock() // a round may be under way
		defer d.run.Unlock()
	}, nil
}

// AtEnd implements softroce.Poller.
func (d *driver) AtEnd(send func()) (schedule func()) { return d.schedule(&d.send, send) }

// WhenIdle implements softroce.Poller.
func (d *driver) WhenIdle(f func()) (schedule func()) { return d.schedule(&d.idle, f) }

func (d *driver) schedule(queue *[]*task, f func()) func() {
	t := &task{f: f}
	return func() {
		d.mu.Lock()
		if !t.queued {
			t.queued = true
			*queue = append(*queue, t)
			if d.asleep {
				d.wake()
			}
		}
		d.mu.Unlock()
	}
}

// round does what there is to do without waiting, and reports whether that was
// anything. Functions for idle times run if there was nothing else. run is held.
func (d *driver) round() (busy bool) {
	n := d.poll()
	for i := range n {
		d.dispatch(&d.events[i])
	}
	if d.runTasks(&d.send) || n > 0 {
		return true
	}
	return d.runTasks(&d.idle)
}

// poll asks for events without waiting. It is no entry into the scheduler.
func (d *driver) poll() int {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(d.epoll), uintptr(unsafe.Pointer(&d.events[0])), uintptr(len(d.events)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

func (d *driver) dispatch(ev *unix.EpollEvent) {
	if int(ev.Fd) == d.event {
		var count [8]byte
		_, _ = unix.Read(d.event, count[:])
		return
	}
	d.mu.Lock()
	take := d.watches[ev.Fd]
	d.mu.Unlock()
	if take == nil {
		return
	}
	if ev.Events&unix.EPOLLERR != 0 {
		// Such as ENETDOWN. Asking takes it away, or it would be told for ever.
		_, _ = unix.GetsockoptInt(int(ev.Fd), unix.SOL_SOCKET, unix.SO_ERROR)
	}
	take()
}

// runTasks calls the functions scheduled until now and reports whether there were
// any.
func (d *driver) runTasks(queue *[]*task) bool {
	d.mu.Lock()
	d.due = append(d.due[:0], *queue...)
	*queue = (*queue)[:0]
	for _, t := range d.due {
		t.queued = false
	}
	d.mu.Unlock()
	for _, t := range d.due {
		t.f()
	}
	return len(d.due) > 0
}

// serve runs the rounds while nobody else does.
func (d *driver) serve() {
	defer close(d.done)
	for {
		d.run.Lock()
		for last, i := d.pace.clock(), 1; ; i++ {
			if d.round() {
				last = d.pace.clock()
			} else if now := d.pace.clock(); now-last > quiet {
				break
			} else {
				d.pace.others(now)
			}
			if i%looks == 0 {
				// Whoever stops a watch waits for the end of a round. Another socket may
				// be readable all the time: those of a device that closes are not read
				// any more.
				d.run.Unlock()
				runtime.Gosched()
				d.run.Lock()
			}
			giveWay()
		}
		d.run.Unlock()

		d.mu.Lock()
		if d.closed {
			d.mu.Unlock()
			return
		}
		if len(d.send)+len(d.idle) > 0 {
			d.mu.Unlock()
			continue
		}
		d.asleep = true
		d.mu.Unlock()
		// What is readable is told again by the next round.
		var events [1]unix.EpollEvent
		_, _ = unix.EpollWait(d.epoll, events[:], -1)
		d.mu.Lock()
		d.asleep = false
		d.mu.Unlock()
	}
}

// giveWay lets another thread have the processor: that of the peer perhaps, on
// this host.
func giveWay() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// rest is what await does between two rounds without work. run is held.
func (d *driver) rest() {
	d.pace.begin()
	if d.pace.crowded() {
		_, _ = unix.EpollWait(d.epoll, d.events[:], crowdSleep)
	} else {
		giveWay()
	}
	d.pace.end()
}

// looks is how often await looks before it has the scheduler of Go look for
// others in any case, and asks whether to go on.
const looks = 256

// await runs rounds until seen returns true, as long as patience and ctx allow.
// run is held.
func (d *driver) await(ctx context.Context, patience time.Duration, seen func() bool) error {
	var since time.Time
	d.pace.work()
	for i := 1; !seen(); i++ {
		if d.round() {
			since = time.Time{}
			d.pace.work()
		} else {
			d.rest()
		}
		if i%looks != 0 {
			continue
		}
		runtime.Gosched()
		switch now := time.Now(); {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case since.IsZero():
			since = now
		case now.Sub(since) > patience:
			return fmt.Errorf("%w for %v", ErrNoAnswer, patience)
		}
	}
	return nil
}
