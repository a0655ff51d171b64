// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/internal/lastclose"
)

// kernelCloses loads the programs for the kernel's reports once for all tests, and attaches
// them. TestMain calls it first, because its descriptors stay open.
var kernelCloses = sync.OnceValues(func() (*lastclose.Watch, error) {
	w, err := lastclose.Load()
	if err != nil {
		return nil, err
	}
	// A number that no socket has: so a test neither attaches nor detaches them.
	if err := w.Add(^uint64(0)); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
})

// newCloses returns what reports last closes: the kernel, if it does, otherwise polledCloses.
func newCloses(t testing.TB) lastCloses {
	t.Helper()
	w, err := kernelCloses()
	switch {
	case err == nil:
		return sharedCloses{w}
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, os.ErrPermission):
		return newPolledCloses(t)
	}
	t.Fatal(err)
	return nil
}

// TestKernelReportsCloses is skipped if the tests of this package make do with polledCloses.
func TestKernelReportsCloses(t *testing.T) {
	testkind.System(t)
	if _, ok := newCloses(t).(sharedCloses); !ok {
		_, err := kernelCloses()
		t.Skip(err)
	}
}

// sharedCloses stays open. One service at a time reads its reports.
type sharedCloses struct{ *lastclose.Watch }

func (sharedCloses) Close() error { return nil }

// polledCloses looks again and again which sockets this process has once. It is enough for
// the tests of this package, where programs, launchers and service are one process, and the
// ends do not stay in messages.
type polledCloses struct {
	event int // eventfd
	stop  chan struct{}
	wg    sync.WaitGroup

	mu      sync.Mutex
	armed   map[uint64]int // descriptor of the holder; -1: not armed
	once    map[uint64]int // how many looks in a row have found it once
	reports map[uint64]bool
}

func newPolledCloses(t testing.TB) *polledCloses {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	c := &polledCloses{event: fd, stop: make(chan struct{}), armed: map[uint64]int{}, once: map[uint64]int{}, reports: map[uint64]bool{}}
	c.wg.Go(func() {
		for {
			select {
			case <-c.stop:
				return
			case <-time.After(time.Millisecond):
				c.poll()
			}
		}
	})
	return c
}

// poll looks once.
func (c *polledCloses) poll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	waits := false
	for _, fd := range c.armed {
		waits = waits || fd >= 0
	}
	if !waits {
		return
	}
	have := map[uint64]int{}
	fds, _ := os.ReadDir("/proc/self/fd")
	for _, d := range fds {
		link, _ := os.Readlink("/proc/self/fd/" + d.Name())
		var number uint64
		if n, _ := fmt.Sscanf(link, "socket:[%d]", &number); n == 1 {
			have[number]++
		}
	}
	for number, fd := range c.armed {
		if have[number] != 1 {
			delete(c.once, number)
			continue
		}
		// The list of descriptors lacks some if others come and go meanwhile.
		if c.once[number]++; fd >= 0 && c.once[number] >= 3 {
			delete(c.once, number)
			c.armed[number] = -1
			c.reports[number] = waiting(fd) > 0
			_, _ = unix.Write(c.event, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		}
	}
}

func (c *polledCloses) Add(number uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed[number] = -1
	return nil
}

func (c *polledCloses) Arm(number uint64, fd int) error {
	// An end in a message has one descriptor in this process.
	time.Sleep(5 * time.Millisecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.armed[number]; !ok {
		return errors.New("socket " + strconv.FormatUint(number, 10) + " is not watched")
	}
	c.armed[number] = fd
	return nil
}

func (c *polledCloses) Remove(number uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.armed, number)
}

func (c *polledCloses) Relax()  {}
func (c *polledCloses) FD() int { return c.event }

func (c *polledCloses) Read(f func(number uint64, unread bool)) {
	_, _ = unix.Read(c.event, make([]byte, 8))
	c.mu.Lock()
	all := c.reports
	c.reports = map[uint64]bool{}
	c.mu.Unlock()
	for number, unread := range all {
		f(number, unread)
	}
}

func (c *polledCloses) Close() error {
	close(c.stop)
	c.wg.Wait()
	return unix.Close(c.event)
}
