// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// thread is a thread in a network namespace of its own. The kernel ends the namespace after it and the last socket.
type thread struct {
	work  chan func()
	gone  chan struct{}
	stock stock
}

func newThread() (*thread, error) {
	t := &thread{work: make(chan func()), gone: make(chan struct{}), stock: newStock()}
	made := make(chan error)
	go t.run(made) // No guard: it calls functions of this package alone.
	return t, <-made
}

func (t *thread) run(made chan<- error) {
	runtime.LockOSThread() // for good: the thread ends with the goroutine
	if unix.Gettid() == unix.Getpid() {
		// The first thread stands for the process: /proc/PID/ns/net is its namespace.
		locked := make(chan struct{})
		go func() { // No guard: see newThread.
			runtime.LockOSThread()
			close(locked)
			t.run(made)
		}()
		<-locked
		runtime.UnlockOSThread()
		return
	}
	defer close(t.gone)
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		made <- fmt.Errorf("divert: a network namespace, for which the stack needs CAP_SYS_ADMIN at its start: %w", os.NewSyscallError("unshare", err))
		return
	}
	made <- nil
	defer t.stock.close()
	for {
		select {
		case f, ok := <-t.work:
			if !ok {
				return
			}
			f()
		case family := <-t.stock.wanted:
			t.stock.fill(family)
		}
	}
}

// do calls f on the thread.
func (t *thread) do(f func() error) error {
	done := make(chan error, 1)
	t.work <- func() { done <- f() }
	return <-done
}

// namespace returns that of the thread.
func (t *thread) namespace() (ns *os.File, err error) {
	err = t.do(func() error { ns, err = os.Open("/proc/thread-self/ns/net"); return err })
	return ns, err
}

// close ends the thread. Sockets stay.
func (t *thread) close() {
	close(t.work)
	<-t.gone
}
