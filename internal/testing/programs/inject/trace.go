// SPDX-License-Identifier: Apache-2.0

//go:build amd64

package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// state is the present fault and what was counted. It is safe for concurrent use.
type state struct {
	mu     sync.Mutex
	fault  Request
	kind   int // index of fault.Call, or -1
	counts [64]int
	failed int
}

// replace sets the next fault and returns what was counted before.
func (s *state) replace(r Request) Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := Answer{Counts: map[string]int{}, Failed: s.failed}
	for i, c := range calls {
		if s.counts[i] > 0 {
			a.Counts[c.name] = s.counts[i]
		}
	}
	if r.Call != "" && find(r.Call) < 0 {
		a.Error = fmt.Sprintf("no kind of call is %q", r.Call)
		return a
	}
	s.fault, s.kind, s.counts, s.failed = r, find(r.Call), [64]int{}, 0
	return a
}

// made counts a call and returns the error number with which it fails, or 0.
func (s *state) made(kind int) unix.Errno {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[kind]++
	if f := s.fault; f.Call != "" && kind == s.kind && s.counts[kind] >= f.At && s.counts[kind] < f.At+max(f.Times, 1) {
		s.failed++
		return unix.Errno(f.Errno)
	}
	return 0
}

// tracer stops the program at the calls of the filter.
type tracer struct {
	main   int // the program
	state  *state
	groups map[int]int  // the process of each thread
	known  map[int]bool // threads that have been stopped before
}

// run traces until the program ends, and returns its exit status.
func (t *tracer) run() (int, error) {
	const options = unix.PTRACE_O_TRACESECCOMP | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL
	var ws unix.WaitStatus
	if _, err := unix.Wait4(t.main, &ws, 0, nil); err != nil {
		return 0, fmt.Errorf("wait for the program: %w", err)
	}
	if !ws.Stopped() {
		return 0, fmt.Errorf("the program ended at once: %#x", ws)
	}
	if err := unix.PtraceSetOptions(t.main, options); err != nil {
		return 0, fmt.Errorf("ptrace: %w", err)
	}
	t.known[t.main] = true
	t.next(t.main, 0)
	for {
		tid, err := unix.Wait4(-1, &ws, unix.WALL, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("wait: %w", err)
		}
		switch {
		case ws.Exited() || ws.Signaled():
			delete(t.groups, tid)
			delete(t.known, tid)
			if tid == t.main && ws.Signaled() {
				return 128 + int(ws.Signal()), nil
			} else if tid == t.main {
				return ws.ExitStatus(), nil
			}
		case ws.Stopped():
			t.stopped(tid, ws)
		}
	}
}

// next lets a thread continue, with a signal or 0. A thread that was killed meanwhile is
// no error.
func (t *tracer) next(tid, sig int) { _ = unix.PtraceCont(tid, sig) }

func (t *tracer) stopped(tid int, ws unix.WaitStatus) {
	first := !t.known[tid]
	t.known[tid] = true
	switch sig := ws.StopSignal(); {
	case sig == unix.SIGTRAP && ws.TrapCause() == unix.PTRACE_EVENT_SECCOMP:
		t.call(tid)
		t.next(tid, 0)
	case sig == unix.SIGTRAP && ws.TrapCause() > 0: // a new thread, a new process, a new program
		if ws.TrapCause() == unix.PTRACE_EVENT_EXEC {
			delete(t.groups, tid)
		}
		t.next(tid, 0)
	case sig == unix.SIGSTOP && first: // new threads and processes begin with it
		t.next(tid, 0)
	default:
		t.next(tid, int(sig))
	}
}

// call handles the stop of a thread before a call of the filter.
func (t *tracer) call(tid int) {
	group, ok := t.groups[tid]
	if !ok {
		group = groupOf(tid)
		t.groups[tid] = group
	}
	if group != t.main {
		return
	}
	kind, err := unix.PtraceGetEventMsg(tid)
	if err != nil || kind >= uint(len(calls)) {
		return
	}
	e := t.state.made(int(kind))
	if e == 0 {
		return
	}
	var regs unix.PtraceRegs
	if unix.PtraceGetRegs(tid, &regs) != nil {
		return // it was killed
	}
	regs.Orig_rax = ^uint64(0) // no call
	regs.Rax = -uint64(e)
	_ = unix.PtraceSetRegs(tid, &regs)
}

// groupOf returns the process of a thread, or 0.
func groupOf(tid int) int {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", tid))
	if err != nil {
		return 0
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); {
		if s, ok := strings.CutPrefix(in.Text(), "Tgid:"); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(s))
			return n
		}
	}
	return 0
}
