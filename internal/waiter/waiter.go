// SPDX-License-Identifier: Apache-2.0

package waiter

import (
	"encoding/binary"
	"errors"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/internal/program"
	"smcr/internal/retry"
)

// standIn is the waiter. Signals are blocked, so that it reads them with what the kernel says about their origin. The Go runtime
// does not block those of caught.
type standIn struct {
	child
	argv    []string    // the program, and its arguments
	met     bool        // the runner can talk
	signals int         // signalfd
	caught  int         // pipe with the numbers of signals that were caught
	ignored []os.Signal // when this process was started; the program may handle them

	pid   int // the program, or 0
	pidfd int
	conts int      // how many SIGCONT the program has got too, although it does not look so
	relay *relayed // nil: no service manager waits for messages
}

// wait is the work of the waiter. It returns the exit status, or does not return.
func wait(c child) int {
	runtime.LockOSThread()
	w := &standIn{child: c, pidfd: -1}
	n, err := strconv.Atoi(c.rest[0])
	if err != nil || n < 1 || n >= len(c.rest) {
		return program.ExitNotExecutable
	}
	w.rest = c.rest[1:]
	w.argv = w.rest[len(w.rest)-n:]
	// If the runner is killed, the program becomes a child of this process.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	if err := w.prepare(); err != nil {
		return w.alone(err)
	}
	return w.run()
}

// prepare tries what this process needs later.
func (w *standIn) prepare() (err error) {
	if w.signals, err = unix.Signalfd(-1, allSignals(), unix.SFD_CLOEXEC|unix.SFD_NONBLOCK); err != nil {
		return os.NewSyscallError("signalfd4", err)
	}
	if err := w.catch(); err != nil {
		return err
	}
	if _, err := unix.Poll([]unix.PollFd{{Fd: int32(w.caught)}}, 0); err != nil {
		return os.NewSyscallError("poll", err)
	}
	err = unix.Sendto(w.sock, []byte{0}, unix.MSG_NOSIGNAL, nil)
	if errors.Is(err, unix.EPIPE) {
		return nil // the runner has ended: run finds out why
	}
	return os.NewSyscallError("sendto", err)
}

// alone has this executable become the program without a waiter.
func (w *standIn) alone(why error) int {
	_ = unix.Close(w.sock)
	if !w.met { // it waits for this process, or has ended
		_ = unix.Kill(w.other, unix.SIGKILL)
	}
	_, _, _ = program.Wait(w.other, 0)
	w.asBefore()
	_ = syscall.Exec(program.Self, append([]string{aloneName, why.Error()}, w.rest...), os.Environ())
	return program.ExitNotExecutable
}

// asBefore makes this process what it was when it was started.
func (w *standIn) asBefore() {
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	if len(w.ignored) > 0 { // without signals, it ignores all
		signal.Ignore(w.ignored...)
	}
	_ = unix.PthreadSigmask(unix.SIG_SETMASK, &w.mask, nil)
}

// run follows the runner.
func (w *standIn) run() int {
	for {
		fds := []unix.PollFd{{Fd: int32(w.sock), Events: unix.POLLIN}, {Fd: int32(w.signals), Events: unix.POLLIN}, {Fd: w.relay.fd(), Events: unix.POLLIN}, {Fd: int32(w.caught), Events: unix.POLLIN}}
		if err := retry.Interrupted(func() error { _, err := unix.Poll(fds, -1); return err }); err != nil {
			return program.ExitNotExecutable
		}
		if (fds[1].Revents != 0 || fds[3].Revents != 0) && fds[0].Revents == 0 { // first what the runner has said
			w.passSignals()
			if ws, ok := w.reap(); ok {
				return endAs(ws)
			}
		}
		if fds[2].Revents != 0 {
			w.relay.pass()
		}
		if fds[0].Revents == 0 {
			continue
		}
		b := make([]byte, maxMessage)
		n, oob, err := receive(w.sock, b)
		if err != nil || n == 0 {
			if w.pid == 0 {
				return w.ended(err)
			}
			// The runner was killed, and the program is a child of this process.
			_ = unix.Close(w.sock)
			w.sock = -1
			if ws, ok := w.reap(); ok {
				return endAs(ws)
			}
			continue
		}
		switch b = b[:n]; message(b[0]) {
		case msgReady:
			w.met = true
		case msgAlone:
			return w.alone(errors.New(string(b[1:])))
		case msgBegins:
			w.begins(b, oob)
		case msgRuns:
			leave(inherited())
		case msgStopped:
			w.conts = 1
		case msgEnded:
			w.relay.pass()
			return endAs(syscall.WaitStatus(binary.LittleEndian.Uint32(b[1:])))
		case msgExit:
			_, _, _ = program.Wait(w.other, 0)
			return int(b[1])
		case msgNative:
			return w.native()
		}
	}
}

// begins learns which process is the program.
func (w *standIn) begins(b, oob []byte) {
	w.pid = int(binary.LittleEndian.Uint32(b[1:]))
	fds := rightsIn(oob)
	if b[5] > 0 {
		w.pidfd, fds = fds[0], fds[1:]
	}
	if len(fds) > 1 {
		w.relay = newRelay(fds[0], fds[1], w.other)
	}
}

// maxMessage is the size of the largest message of the runner.
const maxMessage = 1 << 10

// ended does without a runner that has ended before anything of the program has run. err is that of receiving, or nil.
func (w *standIn) ended(err error) int {
	_, ws, werr := program.Wait(w.other, 0)
	switch {
	case err != nil:
		err = os.NewSyscallError("recvmsg", err)
	case werr == nil && !w.met && ws.Exited() && ws.ExitStatus() > 0: // see meet
		err = syscall.Errno(ws.ExitStatus())
	default:
		err = errSilent
	}
	return w.alone(err)
}

// native executes the program.
func (w *standIn) native() int {
	_, _, _ = program.Wait(w.other, 0)
	path, err := program.Find(w.argv[0])
	if err == nil {
		w.asBefore()
		err = program.Exec(path, w.argv, os.Environ())
	}
	var se *program.StartError
	errors.As(err, &se)
	return se.ExitStatus()
}

// reap reaps children: orphans if this is process 1 of a container, and the program if the runner was killed: then its is true.
func (w *standIn) reap() (ws syscall.WaitStatus, its bool) {
	for {
		switch pid, ws, err := program.Wait(-1, unix.WNOHANG); {
		case err != nil || pid <= 0:
			return 0, false
		case pid == w.pid:
			return ws, true
		}
	}
}
