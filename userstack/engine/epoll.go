// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/internal/atonce"
)

// maxEvents is how many events one round takes from epoll.
const maxEvents = 256

// epoll is the source of a loop's events outside of a simulation: descriptors,
// on a locked thread. It implements rounds.Source.
type epoll struct {
	fd     int
	event  int          // eventfd: ends a sleep
	call   int          // eventfd: ends stayAway
	tid    atomic.Int64 // id of the thread that runs a round, or 0
	thread atomic.Int64 // id of the loop's thread; set by Enter
	one    uint64       // 1, the value that signal writes to an eventfd

	mu      sync.Mutex
	watches map[uint64]*Watch
	nextID  uint64
	closed  bool

	// Used by the loop's thread alone.
	events [maxEvents]unix.EpollEvent
}

// Watch is a descriptor in the epoll set of a loop.
type Watch struct {
	p  *epoll
	id uint64
	fd int
	f  func(events uint32)
}

func newEpoll() (*epoll, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("engine: epoll: %w", err)
	}
	ev, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("engine: eventfd: %w", err)
	}
	p := &epoll{fd: fd, event: ev, one: 1, watches: map[uint64]*Watch{}}
	if err = unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, ev, &unix.EpollEvent{Events: unix.EPOLLIN}); err == nil {
		p.call, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	}
	if err != nil {
		unix.Close(fd)
		unix.Close(ev)
		return nil, fmt.Errorf("engine: epoll: %w", err)
	}
	return p, nil
}

// Enter implements rounds.Source. It locks the goroutine to its thread, so that a wake-up
// of the thread is enough to handle a packet. Without the lock, each wake-up would also have
// to pass through Go's scheduler.
func (p *epoll) Enter() (leave func()) {
	runtime.LockOSThread()
	p.thread.Store(int64(unix.Gettid()))
	return runtime.UnlockOSThread
}

// Here implements rounds.Source.
func (p *epoll) Here() bool { return int64(unix.Gettid()) == p.tid.Load() }

// Poll implements rounds.Source. It does not enter Go's scheduler.
func (p *epoll) Poll() int { return p.poll(p.events[:]) }

func (p *epoll) poll(events []unix.EpollEvent) int {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// sleepAtOnce is how long one call of epoll_wait sleeps at most, in milliseconds. Go 1.26
// overlooks a goroutine that enters a system call at the moment when all goroutines are to
// stop, for the garbage collector or for a call on all threads. All other goroutines of the
// process then wait for the end of this system call.
const sleepAtOnce = 100

// Sleep implements rounds.Source.
func (p *epoll) Sleep(most time.Duration) int {
	for most <= 0 {
		n, err := unix.EpollWait(p.fd, p.events[:], sleepAtOnce)
		if n != 0 || err != nil {
			return max(n, 0)
		}
	}
	return p.sleep(p.events[:], most, false)
}

// sleep waits for events at most for the time most. With hold it keeps the P of the Go
// scheduler.
func (p *epoll) sleep(events []unix.EpollEvent, most time.Duration, hold bool) int {
	ts := unix.NsecToTimespec(int64(most))
	var n uintptr
	var errno syscall.Errno
	if hold {
		n, _, errno = unix.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.fd), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)),
			uintptr(unsafe.Pointer(&ts)), 0, 0)
	} else {
		n, _, errno = unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.fd), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)),
			uintptr(unsafe.Pointer(&ts)), 0, 0)
	}
	if errno == unix.ENOSYS || errno == unix.EPERM { // a sandbox does not know epoll_pwait2
		n, _, errno = unix.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(p.fd), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), 1, 0, 0)
	}
	if errno != 0 {
		return 0
	}
	return int(n)
}

// Yield implements rounds.Source.
func (p *epoll) Yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// Wake implements rounds.Source. It ignores EAGAIN: then a wake-up is pending already.
func (p *epoll) Wake() { p.signal(p.event) }

// signal ends a wait for an eventfd.
func (p *epoll) signal(fd int) {
	_, _, _ = unix.RawSyscall(unix.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&p.one)), unsafe.Sizeof(p.one))
}

// Close implements rounds.Source.
func (p *epoll) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	unix.Close(p.fd)
	unix.Close(p.event)
	unix.Close(p.call)
}

// Handle implements rounds.Source.
func (p *epoll) Handle(i int) { p.handle(&p.events[i]) }

func (p *epoll) handle(ev *unix.EpollEvent) {
	id := getID(ev)
	if id == 0 {
		drain(p.event)
		return
	}
	p.mu.Lock()
	w := p.watches[id]
	p.mu.Unlock()
	if w == nil {
		return
	}
	returned := false
	defer func() {
		if !returned { // a panic: see Loop.SetGuard
			w.Stop(w.fd)
		}
	}()
	w.f(ev.Events)
	returned = true
}

// watch adds a descriptor to the epoll set.
func (p *epoll) watch(fd int, events uint32, f func(events uint32)) (*Watch, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	p.nextID++
	w := &Watch{p: p, id: p.nextID, fd: fd, f: f}
	ev := unix.EpollEvent{Events: events}
	setID(&ev, w.id)
	if err := atonce.Watch(p.fd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return nil, fmt.Errorf("engine: %w", os.NewSyscallError("epoll_ctl", err))
	}
	p.watches[w.id] = w
	return w, nil
}

// change replaces the events that are watched. If one of the new events is true already,
// epoll reports it.
func (w *Watch) change(fd int, events uint32) {
	ev := unix.EpollEvent{Events: events}
	setID(&ev, w.id)
	p := w.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watches[w.id] == w && !p.closed {
		_ = atonce.Watch(p.fd, unix.EPOLL_CTL_MOD, fd, &ev)
	}
}

// Stop ends the watch. fd must be the descriptor of the watch, and still open. A call of
// the function may still be running when Stop returns.
func (w *Watch) Stop(fd int) {
	p := w.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.watches[w.id] != w {
		return
	}
	delete(p.watches, w.id)
	if !p.closed {
		_ = atonce.Watch(p.fd, unix.EPOLL_CTL_DEL, fd, nil)
	}
}

// setID stores the id in the 64 bits of data of an event. Package unix has two fields of 32
// bits for them.
func setID(ev *unix.EpollEvent, id uint64) { ev.Fd, ev.Pad = int32(id), int32(id>>32) }

// getID returns the id that setID stored.
func getID(ev *unix.EpollEvent) uint64 { return uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32 }
