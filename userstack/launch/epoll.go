// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/guard"
)

// An epoll instance knows a socket by its open file and its number. When
// another socket takes the number, the registrations of the old one have to be
// moved, or the program would wait for ever.

// registration is the registration of one socket in one epoll instance of a
// program.
type registration struct {
	epfd int // duplicate of the epoll descriptor in the launcher
	ev   unix.EpollEvent
}

// epollIndex stores which descriptors of a process are epoll instances, so that
// a process with many descriptors is searched again only after an instance was
// made.
type epollIndex struct {
	gen atomic.Uint64 // counts epoll instances made, in any process

	mu    sync.Mutex
	procs map[int]*epollProc
}

type epollProc struct {
	pidfd int // identifies the process even if its id is used again
	gen   uint64
	fds   []int
}

const kcmpEpollTFD = 7

// maxEpollProcs is the largest number of processes in an epollIndex.
const maxEpollProcs = 256

// made is called when a process is about to make an epoll instance.
func (x *epollIndex) made() { x.gen.Add(1) }

func (x *epollIndex) close() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for k, p := range x.procs {
		_ = unix.Close(p.pidfd)
		delete(x.procs, k)
	}
}

func alive(pidfd int) bool {
	return unix.PidfdSendSignal(pidfd, 0, nil, 0) == nil
}

// instances returns the epoll descriptors of thread tid's process.
func (x *epollIndex) instances(tid int) ([]int, error) {
	tgid, err := tgidOf(tid)
	if err != nil {
		return nil, err
	}
	// Read the counter before the search: an instance that is made during the
	// search leads to another search.
	gen := x.gen.Load()
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.procs[tgid]
	if p != nil && p.gen == gen && alive(p.pidfd) {
		return p.fds, nil
	}
	if p != nil {
		_ = unix.Close(p.pidfd)
		delete(x.procs, tgid)
	}
	fds, err := findEpolls(tgid)
	if err != nil {
		return nil, err
	}
	pidfd, err := unix.PidfdOpen(tgid, 0)
	if err != nil {
		return nil, err
	}
	if x.procs == nil {
		x.procs = make(map[int]*epollProc)
	}
	if len(x.procs) >= maxEpollProcs {
		for k, p := range x.procs {
			_ = unix.Close(p.pidfd)
			delete(x.procs, k)
		}
	}
	x.procs[tgid] = &epollProc{pidfd: pidfd, gen: gen, fds: fds}
	return fds, nil
}

func findEpolls(pid int) ([]int, error) {
	task := strconv.Itoa(pid)
	d, err := os.Open("/proc/" + task + "/fd")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var fds []int
	for _, name := range names {
		if fd, err := strconv.Atoi(name); err == nil && isEpoll(task, fd) {
			fds = append(fds, fd)
		}
	}
	return fds, nil
}

// registrations finds where n's descriptor is registered with epoll. The caller
// closes them with closeRegistrations.
func (x *epollIndex) registrations(n *notif) ([]registration, error) {
	eps, err := x.instances(n.tid())
	if err != nil {
		return nil, fmt.Errorf("launch: epoll instances of %d: %w", n.tid(), err)
	}
	if len(eps) == 0 {
		return nil, nil
	}
	type result struct {
		regs []registration
		err  error
	}
	r, err := looked(n.l.looks, n, n.tid(), lookPatience, func() (result, func()) {
		regs, rest, err := findRegistrations(&n.l.looks.threads, n.tid(), n.fdArg(), eps)
		return result{regs, err}, rest
	}, func(r result) { closeRegistrations(r.regs) })
	if err != nil {
		return nil, err
	}
	return r.regs, r.err
}

// errNotEpoll means that the program has replaced an epoll instance by another
// file.
var errNotEpoll = errors.New("launch: not an epoll instance any more")

// findRegistrations finds where descriptor fd of thread tid is registered among
// epoll descriptors eps. It is part of a look, as each instance has a lock that
// another call of the program may hold, and rest, if any, the rest of it.
func findRegistrations(threads *pidfds, tid, fd int, eps []int) (regs []registration, rest func(), err error) {
	for _, ep := range eps {
		if !isRegistered(tid, ep, fd) {
			continue
		}
		ev, ok, err := readRegistration(tid, ep, fd)
		if err == nil && ok {
			var dup int
			if dup, err = threads.getFD(tid, ep); err == nil && !isEpoll("self", dup) {
				err = errNotEpoll
				rest = func() { _ = unix.Close(dup) }
			}
			if err == nil {
				regs = append(regs, registration{epfd: dup, ev: ev})
			}
		}
		if err != nil {
			closeRegistrations(regs)
			return nil, rest, fmt.Errorf("launch: epoll descriptor %d of %d: %w", ep, tid, err)
		}
	}
	return regs, nil, nil
}

// isEpoll reports whether descriptor fd of a task is an epoll instance.
func isEpoll(task string, fd int) bool {
	link, err := os.Readlink("/proc/" + task + "/fd/" + strconv.Itoa(fd))
	return err == nil && link == "anon_inode:[eventpoll]"
}

func closeRegistrations(regs []registration) {
	for _, r := range regs {
		_ = unix.Close(r.epfd)
	}
}

// isRegistered asks the kernel whether epoll instance ep watches what fd is.
// Without kcmp it returns true, and the text in /proc decides.
func isRegistered(tid, ep, fd int) bool {
	slot := [3]uint32{uint32(ep), uint32(fd), 0}
	for ; ; slot[2]++ {
		r, _, e := unix.Syscall6(unix.SYS_KCMP, uintptr(tid), uintptr(tid), kcmpEpollTFD,
			uintptr(fd), uintptr(unsafe.Pointer(&slot)), 0)
		switch {
		case e == unix.ENOENT || e == unix.EBADF || e == unix.EINVAL:
			return false
		case e != 0:
			return true
		case r == 0:
			return true
		}
	}
}

// readRegistration reads the events and data of fd from the fdinfo of epoll
// descriptor ep. A number whose earlier file is still registered occurs more
// than once; the last one added is taken.
func readRegistration(tid, ep, fd int) (ev unix.EpollEvent, ok bool, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/fdinfo/" + strconv.Itoa(ep))
	if err != nil {
		return ev, false, err
	}
	return parseEpollInfo(b, fd)
}

// parseEpollInfo parses lines such as
//
//	tfd:        5 events:       19 data:                5  pos:0 ino:2a2 sdev:9
func parseEpollInfo(b []byte, fd int) (ev unix.EpollEvent, ok bool, err error) {
	want := strconv.Itoa(fd)
	for line := range bytes.Lines(b) {
		f := bytes.Fields(line)
		if len(f) < 6 || string(f[0]) != "tfd:" || string(f[1]) != want {
			continue
		}
		if string(f[2]) != "events:" || string(f[4]) != "data:" {
			return ev, false, errors.New("launch: unknown form of epoll fdinfo")
		}
		events, err := strconv.ParseUint(string(f[3]), 16, 32)
		if err != nil {
			return ev, false, fmt.Errorf("launch: epoll fdinfo: %w", err)
		}
		data, err := strconv.ParseUint(string(f[5]), 16, 64)
		if err != nil {
			return ev, false, fmt.Errorf("launch: epoll fdinfo: %w", err)
		}
		ev.Events = uint32(events)
		*(*uint64)(unsafe.Pointer(&ev.Fd)) = data // Fd and Pad are the data union
		ok = true
	}
	return ev, ok, nil
}

// move is moveRegistrations for n's descriptor: a look, as epoll_ctl waits for
// the lock of the instance.
func (x *looks) move(n *notif, regs []registration, from, to int) error {
	if len(regs) == 0 {
		return nil
	}
	return x.try(n, n.tid(), lookPatience, func() error { return moveRegistrations(regs, n.fdArg(), from, to) })
}

// moveRegistrations replaces socket from by socket to in all of regs, under
// number fd. from and to are descriptors of the launcher.
//
// epoll_ctl takes the number of a socket in the descriptor table of the caller.
// So a thread with its own descriptor table does the work, and ends afterwards.
func moveRegistrations(regs []registration, fd, from, to int) error {
	var err error
	guard.Elsewhere("the registrations of a socket", func() {
		onPassingThread(func() { err = moveHere(regs, fd, from, to) })
	})
	return err
}

// moveHere is moveRegistrations on a thread that ends afterwards.
func moveHere(regs []registration, fd, from, to int) error {
	if err := unix.Unshare(unix.CLONE_FILES); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old); err != nil {
		return os.NewSyscallError("rt_sigprocmask", err)
	}
	e := swapInEpolls(unsafe.Pointer(&regs[0]), len(regs), uintptr(fd), uintptr(from), uintptr(to))
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil)
	if e != 0 {
		return os.NewSyscallError("epoll_ctl", e)
	}
	return nil
}

// onPassingThread calls f on a thread that ends with the calling goroutine. It
// does not use the main thread: Go never ends it, so the copies of all
// descriptors would stay open.
func onPassingThread(f func()) {
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		f() // never unlocked: the thread ends
		return
	}
	defer runtime.UnlockOSThread()
	// On another thread, because this one is locked.
	guard.Elsewhere("a call on a thread of its own", func() { onPassingThread(f) })
}

// swapInEpolls is the part of moveRegistrations during which number fd is
// another file than the one that the Go runtime may have there (such as its
// epoll or eventfd descriptor). So nothing in it may enter the scheduler: no
// allocation, no stack check, no race detector, only raw system calls, and
// signals are blocked. For the scheduler all of it is one system call, because
// epoll_ctl may wait for the program, and other goroutines and the garbage
// collector must not wait with it.
//
//go:nosplit
//go:norace
func swapInEpolls(first unsafe.Pointer, count int, fd, from, to uintptr) unix.Errno {
	entersyscall()
	e := swapRaw(first, count, fd, from, to)
	exitsyscall()
	return e
}

// entersyscall and exitsyscall are called by the runtime before and after each
// system call that may wait.
//
//go:linkname entersyscall runtime.entersyscall
func entersyscall()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()

// swapRaw is all of swapInEpolls.
//
//go:nosplit
//go:norace
func swapRaw(first unsafe.Pointer, count int, fd, from, to uintptr) unix.Errno {
	high := uintptr(1 << 9) // saved and moved descriptors get numbers above this
	if fd >= high {
		high = fd + 1
	}
	saved, _, se := unix.RawSyscall(unix.SYS_FCNTL, fd, unix.F_DUPFD_CLOEXEC, high)
	var failed unix.Errno
	// A socket or an epoll instance may itself have the number fd.
	src, _, e1 := unix.RawSyscall(unix.SYS_FCNTL, from, unix.F_DUPFD_CLOEXEC, high)
	dst, _, e2 := unix.RawSyscall(unix.SYS_FCNTL, to, unix.F_DUPFD_CLOEXEC, high)
	if e1 != 0 || e2 != 0 {
		return unix.EMFILE
	}
	for pass := 0; pass < 2; pass++ {
		op, sock := uintptr(unix.EPOLL_CTL_DEL), src
		if pass == 1 {
			op, sock = unix.EPOLL_CTL_ADD, dst
		}
		for i := 0; i < count; i++ {
			r := (*registration)(unsafe.Add(first, uintptr(i)*unsafe.Sizeof(registration{})))
			ep, _, e := unix.RawSyscall(unix.SYS_FCNTL, uintptr(r.epfd), unix.F_DUPFD_CLOEXEC, high)
			if uintptr(r.epfd) == fd && pass+i > 0 {
				// Overwritten by an earlier round; its copy is saved.
				ep, _, e = unix.RawSyscall(unix.SYS_FCNTL, saved, unix.F_DUPFD_CLOEXEC, high)
			}
			if e != 0 {
				failed = e
				continue
			}
			if _, _, e = unix.RawSyscall(unix.SYS_DUP3, sock, fd, unix.O_CLOEXEC); e != 0 {
				failed = e
			} else if _, _, e = unix.RawSyscall6(unix.SYS_EPOLL_CTL, ep, op, fd, uintptr(unsafe.Pointer(&r.ev)), 0, 0); e != 0 {
				failed = e
			}
			_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, ep, 0, 0)
		}
	}
	if se == 0 {
		_, _, _ = unix.RawSyscall(unix.SYS_DUP3, saved, fd, unix.O_CLOEXEC)
	} else {
		_, _, _ = unix.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
	}
	return failed
}
