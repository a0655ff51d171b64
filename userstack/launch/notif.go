// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// seccompNotif is struct seccomp_notif with its struct seccomp_data
// (linux/seccomp.h), 80 bytes.
type seccompNotif struct {
	ID    uint64
	PID   uint32 // a thread id in the launcher's PID namespace, 0 if not visible there
	Flags uint32
	Nr    int32
	Arch  uint32
	IP    uint64
	Args  [6]uint64
}

// seccompResp is struct seccomp_notif_resp, 24 bytes.
type seccompResp struct {
	ID    uint64
	Val   int64
	Error int32
	Flags uint32
}

// seccompAddFD is struct seccomp_notif_addfd, 24 bytes.
type seccompAddFD struct {
	ID         uint64
	Flags      uint32
	SrcFD      uint32
	NewFD      uint32
	NewFDFlags uint32
}

// Requests that golang.org/x/sys/unix lacks, as linux/seccomp.h builds them.
const (
	iocNotifIDValid  = 0x40082102
	iocNotifAddFD    = 0x40182103
	iocNotifSetFlags = 0x40082104
)

// notify is the seccomp listener of one filter tree. Its methods are safe for
// concurrent use.
type notify struct {
	fd     int
	looks  *looks // looks into the processes of the tree; may be nil
	stores stores
	// received counts calls, and interrupted those that did not wait for their answer.
	received, interrupted atomic.Uint64
}

// notif is one stopped system call. Exactly one of cont, reply, fail or
// addAndReply ends it; each fails with ENOENT when the call was interrupted.
//
// The answer may be lost all the same. If a signal has woken the thread, and it has not run yet,
// the kernel takes the answer, and the thread then gives up the call. Only addAndReply fails then:
// the thread itself places the descriptor. For other answers there is replyOnce.
type notif struct {
	l    *notify
	here bool // the goroutine that received the call answers it
	// threadChanged says that the identity of that goroutine's thread could not
	// be restored: the thread must end.
	threadChanged bool
	seccompNotif
}

// A callID identifies a call: the kernel repeats one that a signal has interrupted with the same
// arguments, in the same thread.
type callID struct {
	tid  int
	ip   uint64
	args [6]uint64
}

func (n *notif) call() callID { return callID{n.tid(), n.IP, n.Args} }

func (l *notify) ioctl(req uintptr, p unsafe.Pointer) (int, error) {
	for {
		r, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), req, uintptr(p))
		if e == unix.EINTR {
			continue
		}
		if e != 0 {
			return 0, e
		}
		return int(r), nil
	}
}

// receive returns the next notification. ENOENT means that the call does not
// wait any more.
func (l *notify) receive() (*notif, error) {
	n := &notif{l: l}
	l.received.Add(1)
	_, err := l.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n.seccompNotif))
	return n, l.seen(err)
}

// seen counts an error that says that a call does not wait any more, and returns it.
func (l *notify) seen(err error) error {
	if errors.Is(err, unix.ENOENT) {
		l.interrupted.Add(1)
	}
	return err
}

// signalled is the number of calls of which one is interrupted in a program that gets many signals.
const signalled = 10_000

// signals reports whether signals interrupt the calls of the tree often enough to count with one
// that comes together with an answer.
func (l *notify) signals() bool { return l.interrupted.Load() > l.received.Load()/signalled }

// schedulerTurns is the number of notifications after which the goroutine
// yields, so that Go's scheduler sees that it is not stuck: see engine.Loop.
const schedulerTurns = 16

// pollAtOnce is how long one call of poll waits at most, in milliseconds. See sleepAtOnce
// of package engine.
const pollAtOnce = 100

// serve calls handle for each notification, one after the other, until the last
// filtered task is gone, the eventfd stop is readable, or handle returns false.
func (l *notify) serve(stop int, handle func(*notif) bool) error {
	fds := []unix.PollFd{{Fd: int32(l.fd), Events: unix.POLLIN}, {Fd: int32(stop), Events: unix.POLLIN}}
	for turn := uint(1); ; turn++ {
		if turn%schedulerTurns == 0 {
			runtime.Gosched()
		}
		if _, err := unix.Poll(fds, pollAtOnce); err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return os.NewSyscallError("poll", err)
		}
		switch {
		case fds[1].Revents != 0:
			return nil
		case fds[0].Revents&unix.POLLIN != 0:
			n, err := l.receive()
			if errors.Is(err, unix.ENOENT) {
				continue // killed between poll and here
			}
			if err != nil {
				return os.NewSyscallError("ioctl SECCOMP_IOCTL_NOTIF_RECV", err)
			}
			if !handle(n) {
				return nil
			}
		case fds[0].Revents&(unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0:
			return nil
		}
	}
}

// wakeUp makes an eventfd readable.
func wakeUp(eventfd int) {
	one := [8]byte{1, 1, 1, 1, 1, 1, 1, 1}
	_, _ = unix.Write(eventfd, one[:])
}

// syncWakeUp asks for synchronous wake-ups: the scheduler assumes that the
// waker will sleep soon, as a caller and a launcher do in turns. It needs Linux
// 6.6; an error does not matter.
func (l *notify) syncWakeUp() {
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), iocNotifSetFlags, unix.SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP)
}

// valid reports whether the thread still waits in the call. If it returns true,
// everything that was read from /proc under the thread's number before belongs
// to this thread.
func (n *notif) valid() bool {
	_, err := n.l.ioctl(iocNotifIDValid, unsafe.Pointer(&n.ID))
	return n.l.seen(err) == nil
}

// usable returns an error if this process may not use the listener: a sandbox can forbid it.
func (l *notify) usable() error {
	var none uint64 // no call has this number
	if _, err := l.ioctl(iocNotifIDValid, unsafe.Pointer(&none)); !errors.Is(err, unix.ENOENT) {
		return os.NewSyscallError("ioctl SECCOMP_IOCTL_NOTIF_ID_VALID", err)
	}
	return nil
}

func (n *notif) send(r seccompResp) error {
	r.ID = n.ID
	_, err := n.l.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r))
	return n.l.seen(err)
}

// cont lets the kernel do the system call.
func (n *notif) cont() error {
	return n.send(seccompResp{Flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE})
}

// reply makes the system call return val.
func (n *notif) reply(val int) error { return n.send(seccompResp{Val: int64(val)}) }

// replyOnce is like reply, for what a repeated call does not return by itself. In a program whose
// calls were interrupted, it lets pending signals interrupt this one first. unsure says that a signal
// came with the answer, which may be lost. One that came and was taken in the few microseconds
// between the two looks is not seen.
func (n *notif) replyOnce(val int) (unsure bool, err error) {
	if !n.l.signals() {
		return false, n.reply(val)
	}
	for end := time.Now().Add(signalTime); pending(n.tid()) && n.valid() && time.Now().Before(end); {
		time.Sleep(signalTick)
	}
	err = n.reply(val)
	return err == nil && pending(n.tid()), err
}

// signalTime is how long a pending signal has to interrupt a call: another thread may take it, or
// this one may be stopped. signalTick is the interval of the looks.
const (
	signalTime = 5 * time.Millisecond
	signalTick = 50 * time.Microsecond
)

// fail makes the system call fail with e.
func (n *notif) fail(e syscall.Errno) error {
	if e == 0 {
		return n.reply(0)
	}
	return n.send(seccompResp{Error: -int32(e)})
}

// setFD places src in the process under number fd, and closes the file that was
// there.
func (n *notif) setFD(src, fd int, cloexec bool) error {
	a := seccompAddFD{ID: n.ID, Flags: unix.SECCOMP_ADDFD_FLAG_SETFD, SrcFD: uint32(src), NewFD: uint32(fd)}
	if cloexec {
		a.NewFDFlags = unix.O_CLOEXEC
	}
	_, err := n.addFD(&a)
	return err
}

// place places src in the process under a free number. The call still waits for its answer.
func (n *notif) place(src int, cloexec bool) (int, error) {
	a := seccompAddFD{ID: n.ID, SrcFD: uint32(src)}
	if cloexec {
		a.NewFDFlags = unix.O_CLOEXEC
	}
	fd, err := n.l.ioctl(iocNotifAddFD, unsafe.Pointer(&a))
	return fd, n.l.seen(err)
}

// addAndReply places src in the process under number at, or a free one if that is negative, which
// the call returns, in one step. It returns that number, too.
func (n *notif) addAndReply(src, at int, cloexec bool) (int, error) {
	a := seccompAddFD{ID: n.ID, Flags: unix.SECCOMP_ADDFD_FLAG_SEND, SrcFD: uint32(src)}
	if at >= 0 {
		a.Flags |= unix.SECCOMP_ADDFD_FLAG_SETFD
		a.NewFD = uint32(at)
	}
	if cloexec {
		a.NewFDFlags = unix.O_CLOEXEC
	}
	return n.addFD(&a)
}

// addFD makes the request with all signals blocked. A signal during it (such as
// SIGURG of the Go runtime) would lose the descriptor and let the call return
// 0.
func (n *notif) addFD(a *seccompAddFD) (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old); err != nil {
		return -1, err
	}
	fd, err := n.l.ioctl(iocNotifAddFD, unsafe.Pointer(a))
	err = n.l.seen(err)
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) // cannot fail if the first did not
	return fd, err
}

// isGone reports whether an answer came too late because the call was
// interrupted, its thread died, or the call had another answer (EINPROGRESS).
func isGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINPROGRESS)
}

// fdArg returns the first argument of n, which is a descriptor in most trapped
// calls.
func (n *notif) fdArg() int { return int(int32(n.Args[0])) }

func (n *notif) tid() int { return int(n.PID) }
