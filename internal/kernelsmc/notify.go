// SPDX-License-Identifier: Apache-2.0

package kernelsmc

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/internal/retry"
)

// call is struct seccomp_notif with its struct seccomp_data (linux/seccomp.h): a system call that waits for its answer. Each answer
// fails with ENOENT if the call does not wait any more.
type call struct {
	ID    uint64
	PID   uint32 // a thread id in the supervisor's PID namespace, 0 if it is not visible there
	Flags uint32
	Nr    int32
	Arch  uint32
	IP    uint64
	Args  [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	ID    uint64
	Val   int64
	Error int32
	Flags uint32
}

// addFD is struct seccomp_notif_addfd.
type addFD struct {
	ID         uint64
	Flags      uint32
	SrcFD      uint32
	NewFD      uint32
	NewFDFlags uint32
}

// Requests that golang.org/x/sys/unix lacks, as linux/seccomp.h builds them.
const (
	iocNotifIDValid = 0x40082102
	iocNotifAddFD   = 0x40182103
)

// listener is the descriptor of a filter.
type listener int

func (l listener) ioctl(req uintptr, p unsafe.Pointer) (int, error) {
	n := 0
	err := retry.Interrupted(func() error {
		r, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(l), req, uintptr(p))
		if n = int(r); e != 0 {
			n = 0
			return e
		}
		return nil
	})
	return n, err
}

// usable returns an error if this process may not use the listener: a sandbox can forbid it.
func (l listener) usable() error {
	var none uint64 // no call has this number
	if _, err := l.ioctl(iocNotifIDValid, unsafe.Pointer(&none)); !errors.Is(err, unix.ENOENT) {
		return os.NewSyscallError("ioctl SECCOMP_IOCTL_NOTIF_ID_VALID", err)
	}
	return nil
}

// serve calls answer for each call, one after the other, until the last task with the filter is gone.
func (l listener) serve(answer func(*call)) error {
	fds := []unix.PollFd{{Fd: int32(l), Events: unix.POLLIN}}
	for {
		if err := retry.Interrupted(func() error { _, err := unix.Poll(fds, -1); return err }); err != nil {
			return os.NewSyscallError("poll", err)
		}
		if fds[0].Revents&unix.POLLIN == 0 {
			return nil
		}
		c := new(call)
		_, err := l.ioctl(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(c))
		switch {
		case err == nil:
			answer(c)
		case !errors.Is(err, unix.ENOENT): // it was killed meanwhile
			return os.NewSyscallError("ioctl SECCOMP_IOCTL_NOTIF_RECV", err)
		}
	}
}

// cont lets the kernel do the call.
func (l listener) cont(c *call) error {
	r := response{ID: c.ID, Flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
	_, err := l.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r))
	return err
}

// fail makes the call fail.
func (l listener) fail(c *call, e syscall.Errno) error {
	r := response{ID: c.ID, Error: -int32(e)}
	_, err := l.ioctl(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r))
	return err
}

// place makes the call return a new descriptor of the process for fd, in one step. All signals are blocked: one of the Go runtime
// would lose the descriptor and let the call return 0.
func (l listener) place(c *call, fd int, cloexec bool) error {
	a := addFD{ID: c.ID, Flags: unix.SECCOMP_ADDFD_FLAG_SEND, SrcFD: uint32(fd)}
	if cloexec {
		a.NewFDFlags = unix.O_CLOEXEC
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, old unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &old); err != nil {
		return err
	}
	_, err := l.ioctl(iocNotifAddFD, unsafe.Pointer(&a))
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &old, nil) // cannot fail if the first did not
	return err
}

// gone reports whether an answer came too late: a signal or its end has taken the thread out of the call, or it had another answer.
func gone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINPROGRESS)
}
