// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"smcr/guard"
)

// A look is an action of the launcher in a process of the program that the process
// can delay without limit: reading memory that a userfaultfd or a FUSE file provides,
// closing the copy of a descriptor of a FUSE file, or asking an epoll instance or a
// socket whose lock another call of the process holds. Each look blocks a thread, and
// a Go process can only have a limited number of threads. So each look has its own
// goroutine, and the number of looks is limited for each process and in total: a
// process that has reached its limit waits only for its own looks.

const (
	// validTick is the interval at which the launcher checks whether a call
	// still waits.
	validTick = 100 * time.Millisecond
	// freeLooks is the number of looks that may run before the launcher
	// determines their processes.
	freeLooks = 8
	// procLooks is the largest number of looks of one process that run.
	procLooks = 8
	// sharedLooks is the number of looks from which on a process may have only
	// one. maxLooks is the largest number of all looks.
	sharedLooks = 256
	maxLooks    = 512
	// lookPatience is how long a connect() waits for its look before the kernel
	// gets the call.
	lookPatience = 250 * time.Millisecond
	// lookLast is how long the launcher waits for running looks after the
	// program ended.
	lookLast = time.Second
)

var (
	// errBusy means that too many looks of a process are running.
	errBusy = errors.New("launch: too many calls of the process wait for its memory")
	// errEnding means that the program ended before the look.
	errEnding = errors.New("launch: the program has ended")
)

// looks counts the looks and lets them wait for their turn.
type looks struct {
	guard   *guard.Guard
	over    chan struct{} // closed when the launcher does not wait for looks any more
	threads pidfds

	mu    sync.Mutex
	total int
	fresh map[*look]struct{} // running, and their processes are not determined yet
	procs map[int]*lookProc
}

// lookProc is a process with looks that run or wait.
type lookProc struct {
	id    int
	busy  int
	queue []*look
}

type look struct {
	tid  int
	proc *lookProc     // nil: not asked
	turn chan struct{} // closed when it may begin
}

func newLooks(ctx context.Context) *looks {
	x := &looks{over: make(chan struct{}), fresh: make(map[*look]struct{}), procs: make(map[int]*lookProc)}
	context.AfterFunc(ctx, func() { time.AfterFunc(lookLast, func() { close(x.over) }) })
	return x
}

// begin gets a place for a look into thread tid. If there is none, it waits for
// one. The wait ends with an error when call n, if it is not nil, does not wait
// any more, or after patience, if that is not 0.
func (x *looks) begin(n *notif, tid int, patience time.Duration) (*look, error) {
	l := &look{tid: tid}
	x.mu.Lock()
	if x.total < freeLooks {
		x.total++
		x.fresh[l] = struct{}{}
		x.mu.Unlock()
		return l, nil
	}
	x.mu.Unlock()
	tgid, err := x.threads.tgid(tid)
	if err != nil {
		return nil, unix.ESRCH
	}
	x.mu.Lock()
	for f := range x.fresh {
		// The look of a thread that has ended counts for no process. There are
		// at most freeLooks of these.
		if id, err := x.threads.tgid(f.tid); err == nil {
			delete(x.fresh, f)
			f.proc = x.proc(id)
			f.proc.busy++
		}
	}
	l.proc = x.proc(tgid)
	if len(l.proc.queue) == 0 && x.admit(l.proc) {
		x.mu.Unlock()
		return l, nil
	}
	l.turn = make(chan struct{})
	l.proc.queue = append(l.proc.queue, l)
	x.mu.Unlock()
	return x.await(l, n, patience)
}

func (x *looks) await(l *look, n *notif, patience time.Duration) (*look, error) {
	var late <-chan time.Time
	if patience > 0 {
		t := time.NewTimer(patience)
		defer t.Stop()
		late = t.C
	}
	tick := time.NewTicker(validTick)
	defer tick.Stop()
	var err error
	for err == nil {
		select {
		case <-l.turn:
			return l, nil
		case <-late:
			err = errBusy
		case <-x.over:
			err = errEnding
		case <-tick.C:
			if n != nil && !n.valid() {
				err = unix.ENOENT
			}
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if i := slices.Index(l.proc.queue, l); i >= 0 {
		l.proc.queue = slices.Delete(l.proc.queue, i, i+1)
		x.forget(l.proc)
		return nil, err
	}
	return l, nil // its turn came meanwhile
}

// proc returns the entry of a process, and creates it if necessary. mu is held.
func (x *looks) proc(tgid int) *lookProc {
	p := x.procs[tgid]
	if p == nil {
		p = &lookProc{id: tgid}
		x.procs[tgid] = p
	}
	return p
}

// forget removes the entry of a process without looks. mu is held.
func (x *looks) forget(p *lookProc) {
	if p.busy == 0 && len(p.queue) == 0 {
		delete(x.procs, p.id)
	}
}

// admit takes a place for process p and reports whether there was one. mu is
// held.
func (x *looks) admit(p *lookProc) bool {
	if p.busy >= procLooks || x.total >= maxLooks || x.total >= sharedLooks && p.busy > 0 {
		return false
	}
	x.total++
	p.busy++
	return true
}

// serve lets waiting looks of process p begin, as long as there are places. mu
// is held.
func (x *looks) serve(p *lookProc) {
	for len(p.queue) > 0 && x.admit(p) {
		close(p.queue[0].turn)
		p.queue = slices.Delete(p.queue, 0, 1)
	}
}

// end gives the place back.
func (x *looks) end(l *look) {
	x.mu.Lock()
	defer x.mu.Unlock()
	scarce := x.total >= sharedLooks
	x.total--
	if l.proc == nil {
		delete(x.fresh, l)
	} else {
		l.proc.busy--
		x.serve(l.proc)
		x.forget(l.proc)
	}
	if scarce {
		for _, p := range x.procs {
			x.serve(p)
		}
	}
}

// looked runs f as a look into thread tid. n is the call of this thread, or
// nil. f may run on after the program has ended, so it must not use anything
// that the launcher closes then. The function that f returns as rest is called
// after the result was delivered, as part of the same look. drop is called with
// a result that nobody waits for any more.
func looked[T any](x *looks, n *notif, tid int, patience time.Duration, f func() (v T, rest func()), drop func(T)) (T, error) {
	var zero T
	if n != nil && n.here { // the receiver is watched, see receiver
		v, rest := f()
		if rest != nil {
			rest()
		}
		return v, nil
	}
	l, err := x.begin(n, tid, patience)
	if err != nil {
		return zero, err
	}
	type outcome struct {
		v   T
		err error // a panic in f
	}
	result := make(chan outcome)
	go func() {
		defer x.end(l)
		var o outcome
		var rest func()
		o.err = x.guard.Do(lookTask, func() { o.v, rest = f() })
		select {
		case result <- o:
		case <-x.over:
			if drop != nil && o.err == nil {
				drop(o.v)
			}
		}
		if rest != nil {
			_ = x.guard.Do(lookTask, rest)
		}
	}()
	select {
	case o := <-result:
		return o.v, o.err
	case <-x.over:
		return zero, errEnding
	}
}

// lookTask names a look in the log.
const lookTask = "a look into a process of the program"

// try is like looked for a function that only returns an error.
func (x *looks) try(n *notif, tid int, patience time.Duration, f func() error) error {
	type result struct{ err error }
	r, err := looked(x, n, tid, patience, func() (result, func()) { return result{f()}, nil }, nil)
	if err != nil {
		return err
	}
	return r.err
}
