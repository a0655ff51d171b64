// SPDX-License-Identifier: Apache-2.0

package waiter

import (
	"encoding/binary"
	"errors"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/internal/program"
)

// standIn is the waiter. Signals are blocked, so that it reads them with what the kernel says about their origin. The Go runtime
// does not block those of caught.
type standIn struct {
	child
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
	// If the runner is killed, the program becomes a child of this process.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	// In a sandbox that forbids it, the program does not get all signals.
	var err error
	if w.signals, err = unix.Signalfd(-1, allSignals(), unix.SFD_CLOEXEC|unix.SFD_NONBLOCK); err != nil {
		w.signals = -1
	}
	w.catch()
	if err := unix.Sendto(w.sock, []byte{0}, unix.MSG_NOSIGNAL, nil); err != nil {
		_ = unix.Close(w.sock) // for which the runner waits: it says that the program does not run
		_, _, _ = program.Wait(w.other, 0)
		return program.ExitNotExecutable
	}
	return w.run()
}

// run follows the runner.
func (w *standIn) run() int {
	for {
		fds := []unix.PollFd{{Fd: int32(w.sock), Events: unix.POLLIN}, {Fd: int32(w.signals), Events: unix.POLLIN}, {Fd: w.relay.fd(), Events: unix.POLLIN}, {Fd: int32(w.caught), Events: unix.POLLIN}}
		if err := program.Again(func() error { _, err := unix.Poll(fds, -1); return err }); err != nil {
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
		b := make([]byte, 64)
		n, oob, err := receive(w.sock, b)
		if err != nil || n == 0 {
			if w.pid == 0 {
				return program.ExitNotExecutable
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
	for _, fd := range rightsIn(oob) {
		if _, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil {
			w.pidfd = fd
		} else {
			w.relay = newRelay(fd, w.other)
		}
	}
}

// native executes the program.
func (w *standIn) native() int {
	_, _, _ = program.Wait(w.other, 0)
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
	path, err := program.Find(w.rest[0])
	if err == nil {
		if len(w.ignored) > 0 { // without signals, it ignores all
			signal.Ignore(w.ignored...)
		}
		_ = unix.PthreadSigmask(unix.SIG_SETMASK, &w.mask, nil)
		err = program.Exec(path, w.rest, os.Environ())
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
