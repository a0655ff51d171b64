// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"smcr/guard"
)

// poller waits for many descriptors in one goroutine. The poller of the Go
// runtime cannot be used, because it would make the sockets of the programs
// non-blocking.
type poller struct {
	ep    int
	wake  int // eventfd
	wg    sync.WaitGroup
	guard *guard.Guard // set before the first watch

	mu   sync.Mutex
	next uint64
	subs map[uint64]*subscription
}

// subscription is one watched descriptor.
type subscription struct {
	p  *poller
	id uint64
	fd int
	ev uint32
	f  func(events uint32)
}

func newPoller() (*poller, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		_ = unix.Close(ep)
		return nil, os.NewSyscallError("eventfd", err)
	}
	p := &poller{ep: ep, wake: wake, subs: make(map[uint64]*subscription)}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, wake, &unix.EpollEvent{Events: unix.EPOLLIN}); err != nil {
		_ = unix.Close(ep)
		_ = unix.Close(wake)
		return nil, os.NewSyscallError("epoll_ctl", err)
	}
	p.wg.Go(p.run) // No guard: each event has one.
	return p, nil
}

// watch calls f, in the poller's goroutine, whenever fd has one of events
// (errors and hang-ups always count). f must not block. The caller stops the
// subscription before it closes fd.
func (p *poller) watch(fd int, events uint32, f func(events uint32)) (*subscription, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	s := &subscription{p: p, id: p.next, fd: fd, ev: events, f: f}
	if err := unix.EpollCtl(p.ep, unix.EPOLL_CTL_ADD, fd, s.event()); err != nil {
		return nil, os.NewSyscallError("epoll_ctl", err)
	}
	p.subs[s.id] = s
	return s, nil
}

func (s *subscription) event() *unix.EpollEvent {
	return &unix.EpollEvent{Events: s.ev, Fd: int32(uint32(s.id)), Pad: int32(s.id >> 32)}
}

// again watches the descriptor once more after an event with EPOLLONESHOT.
func (s *subscription) again() {
	if s == nil {
		return
	}
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.p.subs[s.id] == s {
		_ = unix.EpollCtl(s.p.ep, unix.EPOLL_CTL_MOD, s.fd, s.event())
	}
}

// stop ends the subscription. A call of f may still be running.
func (s *subscription) stop() {
	if s == nil {
		return
	}
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	if s.p.subs[s.id] == s {
		delete(s.p.subs, s.id)
		_ = unix.EpollCtl(s.p.ep, unix.EPOLL_CTL_DEL, s.fd, nil)
	}
}

func (p *poller) run() {
	events := make([]unix.EpollEvent, 64)
	for {
		n, err := unix.EpollWait(p.ep, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		for _, ev := range events[:max(n, 0)] {
			id := uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32
			if id == 0 {
				return
			}
			p.mu.Lock()
			s := p.subs[id]
			p.mu.Unlock()
			if s != nil {
				_ = p.guard.Do("an event of the launcher", func() { s.f(ev.Events) })
			}
		}
	}
}

// halt ends the poller's goroutine and waits for it. No function is called any
// more.
func (p *poller) halt() {
	one := [8]byte{1, 1, 1, 1, 1, 1, 1, 1}
	_, _ = unix.Write(p.wake, one[:])
	p.wg.Wait()
}

// close ends the poller. There must be no subscriptions any more.
func (p *poller) close() {
	p.halt()
	_ = unix.Close(p.ep)
	_ = unix.Close(p.wake)
}
