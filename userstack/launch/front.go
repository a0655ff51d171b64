// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/internal/retry"
)

// For the shell, the service manager and the container runtime, the program is the process that
// they have started: its process id, its parent, its exit status, its signals. They start smcr,
// not the program, so this process, the front, becomes the program, and the launcher is another
// process (Become):
//
//   - Beside: the front has no child. The launcher is started by an intermediate process that
//     ends at once, so that the program later has no child that it has not made. The front
//     installs the filter and executes the program. The launcher ends with the last process that
//     has the filter. It has none of the descriptors of the program, except standard error.
//   - Under: the launcher is a child of the front, and the program a child of the launcher. The
//     front is a waiter (waiter.go): it passes signals on, stops when the program stops, and ends
//     as the program ends. This is for machines where a process may only access its descendants
//     (Yama), and for smcr run -v, which prints before the status is there.

// frontMessage is the first byte of a message from the launcher to the front.
type frontMessage byte

const (
	frontGoOn    frontMessage = iota // execute the program
	frontInstall                     // beside: install the filter; with the flags of a stub
	frontNative                      // execute the program without a launcher
	frontExit                        // end when the launcher has; with an exit status
	frontBegins                      // under: the program will run; with its pidfd
	frontRuns                        // under: the program runs
	frontStopped                     // under: a signal has stopped the program
	frontEnded                       // under: the program has ended; with its wait status
)

// Front is the process that becomes the program, as its launcher sees it. See Become.
type Front struct {
	sock  int
	under bool
	// blocked means that the program is to have SIGTTOU blocked.
	blocked bool
	pid     int
	pidfd   int
	group   int // its process group
	// What trial returns.
	tried  bool
	tryEnd syscall.WaitStatus
	tryErr error
	// env has variables that are for the program only.
	env []string
	// had has, under the front, the descriptors that are the program's.
	had   []int
	ended syscall.WaitStatus // under the front, of the program
	// relay is the socket whose messages the waiter passes to the service manager, or -1.
	relay int
}

// theFront is the front of this process. It is a package variable because MaybeChild, which sets
// it, is called before the program knows that it is a launcher.
var theFront *Front

// TheFront returns the front, if Become of another process has started this one as its launcher,
// and nil otherwise. The launcher passes it to Run.
func TheFront() *Front { return theFront }

// Native makes the front execute the program without a launcher.
func (f *Front) Native() error { return f.tell(frontNative, nil) }

// Exit makes the front end with a status as soon as this process has ended. The program must not
// run.
func (f *Front) Exit(status int) error { return f.tell(frontExit, []byte{byte(status)}) }

// tell sends a message to the front.
func (f *Front) tell(m frontMessage, data []byte, fds ...int) error {
	// If this process ended with a message unread, the front would not read this one.
	_, _ = f.trial()
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	b := append([]byte{byte(m)}, data...)
	err := retry.While(retry.NoMemory, roomTime, func() error { return unix.Sendmsg(f.sock, b, oob, nil, unix.MSG_NOSIGNAL) })
	if err != nil {
		return fmt.Errorf("launch: the started process: %w", os.NewSyscallError("sendmsg", err))
	}
	return nil
}

// begin puts the program under this launcher. The front is beside.
func (f *Front) begin(ctx context.Context, cfg *Config) (*program, error) {
	ws, err := f.trial()
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrNotBegun, err)
	case ws.Signaled():
		return nil, forbidden(ws.Signal())
	case ws.ExitStatus() == int(unix.EBUSY):
		return &program{listener: -1, wait: func() int { return 0 }}, f.Native()
	case ws.ExitStatus() != 0:
		return nil, filterError(syscall.Errno(ws.ExitStatus()))
	}
	from := lastPIDNow()
	if err := f.tell(frontInstall, []byte(stubFlags(cfg))); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotBegun, err)
	}
	p, err := followStub(ctx, f.sock, cfg.Argv[0], func() error { return mayTake(cfg, f.pid) })
	if err != nil {
		p.discard()
		return nil, err
	}
	p.pid, p.root, p.from = f.pid, f.pid, from
	if p.listener < 0 { // it was the other launcher's in the meantime
		p.wait = func() int { return 0 }
		return p, nil
	}
	_ = unix.Chdir("/") // the program's directory may be unmounted
	p.wait = func() int {
		f.awaitEnd()
		leaveStderr()
		return 0
	}
	return p, nil
}

// trial returns the end of the process that has tried to install the filter. The front tells it
// first; a waiter says that it is ready for signals.
func (f *Front) trial() (syscall.WaitStatus, error) {
	if f.tried {
		return f.tryEnd, f.tryErr
	}
	f.tried = true
	var b [4]byte
	n, _, err := receiveFrom(f.sock, b[:])
	if err == nil && n != len(b) {
		err = errStubEnded
	}
	f.tryEnd, f.tryErr = syscall.WaitStatus(binary.LittleEndian.Uint32(b[:])), err
	return f.tryEnd, f.tryErr
}

// receiveFrom receives a message.
func receiveFrom(sock int, b []byte) (n int, oob []byte, err error) {
	oob = make([]byte, unix.CmsgSpace(2*4))
	for {
		n, oobn, _, _, err := unix.Recvmsg(sock, b, oob, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			return n, oob[:max(oobn, 0)], err
		}
	}
}

// awaitEnd waits until the front, which is the program, has ended.
func (f *Front) awaitEnd() {
	for {
		fds, timeout := []unix.PollFd{{Fd: int32(f.pidfd), Events: unix.POLLIN}}, -1
		if f.pidfd < 0 { // a sandbox forbids it
			timeout = stubTick
		}
		n, err := unix.Poll(fds, timeout)
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) || f.pidfd < 0 && errors.Is(unix.Kill(f.pid, 0), unix.ESRCH) {
			return
		}
	}
}

// leaveStderr gives standard error up if somebody may wait for its end, as the shell does for
// the output of a daemon: the program has ended. Nobody waits for the end of a file, or for that
// of the journal.
func leaveStderr() {
	var st unix.Stat_t
	if unix.Fstat(2, &st) != nil || st.Mode&unix.S_IFMT == unix.S_IFREG {
		return
	}
	if os.Getenv("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", st.Dev, st.Ino) {
		return
	}
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	_ = unix.Dup3(null, 2, 0)
	_ = unix.Close(null)
}

// forbidden is the error of a signal that ended the process that installs the filter.
func forbidden(sig syscall.Signal) error {
	return fmt.Errorf("%w: %v ended the process that installs the filter: a sandbox forbids one of its system calls", ErrNotBegun, sig)
}

// filterError is the error of an installation of the filter.
func filterError(e syscall.Errno) error {
	if e == unix.EINVAL || e == unix.ENOSYS {
		return fmt.Errorf("%w: %w", ErrUnsupported, e)
	}
	return fmt.Errorf("%w: cannot install the seccomp filter: %w", ErrNotBegun, e)
}
