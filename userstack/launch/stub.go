// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/internal/retry"
)

// stubName is argv[0] of the stub. Its further arguments are the descriptor of
// the socket to the launcher, flags, the process that is the front, or 0, the program's path and
// its argv.
const stubName = "smcr-launch-stub"

const (
	stubAllowIOUring = "u"
	stubKernel       = "k"
	stubNoFlags      = "-"
)

// stubBlocked follows the number of the front if SIGTTOU is to stay blocked.
const stubBlocked = "b"

// stubTimeout limits the start of the stub. On a busy machine, or from a slow file system, a
// program may take many seconds to start.
const stubTimeout = time.Minute

// stubTick is the time in milliseconds after which the launcher looks whether it is to end.
const stubTick = 100

// errStubEnded means that the stub ended without a word. A program of one's own that calls Run, but
// not MaybeChild first in main, behaves so.
var errStubEnded = errors.New("launch: the process that was to become the program ended without a message: was it killed, or is its executable gone?")

// Steps of the stub, reported with an errno when they fail.
const (
	stepFilter = iota + 1
	stepExec
	stepListener  // with the listener, or with EBUSY and none
	stepInherited // with a listening socket of the program, and its number instead of the errno
)

// MaybeChild does the work of the processes that Run and Become start. In the stub it installs
// the filter, executes the program and does not return; in a launcher that Become of another
// process started, it prepares the process and returns. Otherwise it returns at once. Call it
// first in main, before flags are parsed.
func MaybeChild() {
	switch os.Args[0] {
	case stubName:
		if len(os.Args) > 5 {
			stub()
		}
	case starterName:
		os.Exit(startLauncher())
	case LauncherName:
		becomeLauncher()
	case waiterName:
		os.Exit(standsIn())
	}
}

// stub is the work of the stub.
func stub() {
	runtime.LockOSThread()
	sock, err := strconv.Atoi(os.Args[1])
	if err != nil {
		os.Exit(ExitNotExecutable)
	}
	unix.CloseOnExec(sock)
	passInherited(sock)
	if err := installFilter(sock, os.Args[2]); err != nil {
		report(sock, stepFilter, err, -1)
		os.Exit(ExitNotExecutable)
	}
	if !mayGoOn(sock) {
		os.Exit(ExitNotExecutable)
	}
	env := os.Environ()
	if front := os.Args[3]; front != "0" {
		front, blocked := strings.CutSuffix(front, stubBlocked)
		env = asStarted(env, front)
		if !blocked {
			_ = unix.PthreadSigmask(unix.SIG_UNBLOCK, sigset(unix.SIGTTOU), nil) // see becomeWaiter
		}
	}
	// Only this thread has the filter, so it must do the exec.
	err = execAsStarted(os.Args[4], os.Args[5:], env)
	report(sock, stepExec, err, -1)
	os.Exit(ExitNotExecutable)
}

// installFilter installs the filter and passes its listener through sock.
func installFilter(sock int, flags string) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	fd, e := seccomp(flags)
	if e == unix.EBUSY { // a filter tree has one listener only
		report(sock, stepListener, e, -1)
		return nil
	}
	if e != 0 {
		return e
	}
	report(sock, stepListener, nil, int(fd))
	return unix.Close(int(fd))
}

// seccomp installs the filter on this thread, and returns its listener.
func seccomp(flags string) (fd uintptr, e syscall.Errno) {
	prog := filterProgram(flags == stubAllowIOUring)
	options := uintptr(unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
	if flags == stubKernel {
		// socket() does not wait, so no signal handler needs to run before it
		// is answered, and no signal must make it fail with EINTR.
		prog = kernelFilterProgram()
		options |= unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	}
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	install := func() (uintptr, syscall.Errno) {
		fd, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, options, uintptr(unsafe.Pointer(&fprog)))
		return fd, e
	}
	fd, e = install()
	if e == unix.EINVAL && flags == stubKernel { // before Linux 5.19
		options &^= unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
		fd, e = install()
	}
	runtime.KeepAlive(prog)
	return fd, e
}

// mayGoOn waits until the launcher has found that it can answer calls, or has ended.
func mayGoOn(sock int) bool {
	for {
		n, _, err := unix.Recvfrom(sock, make([]byte, 1), 0)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n == 1
		}
	}
}

// report tells the launcher the result of a step. If this fails, the launcher
// sees an end of file.
func report(sock, step int, err error, fd int) {
	b := binary.LittleEndian.AppendUint32(nil, uint32(step))
	b = binary.LittleEndian.AppendUint32(b, uint32(errnoOf(err)))
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	_ = retry.While(retry.NoMemory, roomTime, func() error { return unix.Sendmsg(sock, b, oob, nil, unix.MSG_NOSIGNAL) })
}

// stubFlags returns the flags of the filter that the program needs.
func stubFlags(cfg *Config) string {
	switch {
	case cfg.Kernel != nil:
		return stubKernel
	case cfg.AllowIOUring:
		return stubAllowIOUring
	}
	return stubNoFlags
}

// startStub starts the stub and waits until it has executed the program.
func startStub(ctx context.Context, cfg *Config, path string, env []string) (*os.Process, *program, error) {
	socks, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrNotBegun, os.NewSyscallError("socketpair", err))
	}
	defer unix.Close(socks[0])
	front, sys := "0", (*syscall.SysProcAttr)(nil)
	if cfg.Front != nil {
		if front = strconv.Itoa(cfg.Front.pid); cfg.Front.blocked {
			front += stubBlocked
		}
		sys = &syscall.SysProcAttr{Setpgid: true, Pgid: cfg.Front.group}
	}
	argv := append([]string{stubName, strconv.Itoa(socks[1]), stubFlags(cfg), front, path}, cfg.Argv...)
	pid, err := children.start(argv, &syscall.ProcAttr{Dir: cfg.Dir, Env: env, Files: stubFiles(cfg, socks[1]), Sys: sys})
	_ = unix.Close(socks[1])
	if err != nil {
		return nil, nil, fmt.Errorf("%w: cannot start a process: %w", ErrNotBegun, err)
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return nil, nil, fmt.Errorf("launch: %w", err)
	}
	prog, err := followStub(ctx, socks[0], cfg.Argv[0], func() error { return begins(cfg, pid) })
	if err != nil {
		prog.discard()
		_ = p.Kill()
		st, _ := p.Wait()
		children.remove(pid)
		if errors.Is(err, errStubEnded) && st != nil {
			if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() && ws.Signal() != unix.SIGKILL {
				err = forbidden(ws.Signal())
			}
		}
		return nil, nil, err
	}
	prog.pid = pid
	return p, prog, nil
}

// begins tells a front that is a waiter of the process that becomes the program, if this launcher
// can serve it.
func begins(cfg *Config, pid int) error {
	if err := mayTake(cfg, pid); err != nil || cfg.Front == nil {
		return err
	}
	return cfg.Front.begins(pid)
}

// stubFiles lists the descriptors of the stub: the standard ones, those that
// the launcher inherited and passes on, and sock. Each keeps its number, so
// that sock does not replace a descriptor that the program inherits. sock is
// listed here, instead of clearing its close-on-exec flag, so that other
// children that are started meanwhile do not get it.
func stubFiles(cfg *Config, sock int) []uintptr {
	files := make([]uintptr, 3, sock+1)
	for i, f := range []*os.File{cfg.Stdin, cfg.Stdout, cfg.Stderr} {
		files[i] = uintptr(i)
		if f != nil {
			files[i] = f.Fd()
		}
	}
	for fd := 3; fd < sock; fd++ {
		keep := ^uintptr(0)
		if f, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil && f&unix.FD_CLOEXEC == 0 {
			keep = uintptr(fd)
		}
		files = append(files, keep)
	}
	return append(files, uintptr(sock))
}

// followStub reads the reports of the stub until the end of file, which the
// exec causes. begins is called before the program is executed. The program that
// followStub returns is never nil.
func followStub(ctx context.Context, sock int, name string, begins func() error) (p *program, err error) {
	p = &program{listener: -1}
	deadline := time.Now().Add(stubTimeout)
	for seen := false; ; {
		b, oob := make([]byte, 8), make([]byte, unix.CmsgSpace(4))
		n, oobn := 0, 0
		if _, err := unix.Poll([]unix.PollFd{{Fd: int32(sock), Events: unix.POLLIN}}, stubTick); err != nil {
			time.Sleep(time.Millisecond) // a sandbox forbids it
		}
		err := retry.While(retry.NoMemory, roomTime, func() (err error) {
			n, oobn, _, _, err = unix.Recvmsg(sock, b, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
			return err
		})
		switch {
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
			if ctx.Err() != nil {
				return p, fmt.Errorf("launch: %w", context.Cause(ctx))
			}
			if time.Now().After(deadline) {
				return p, fmt.Errorf("launch: the stub did not start within %v", stubTimeout)
			}
			continue
		case errors.Is(err, unix.ECONNRESET): // it has not read that it may go on
			return p, fmt.Errorf("%w: %w", ErrNotBegun, errStubEnded)
		case err != nil:
			return p, fmt.Errorf("launch: %w", os.NewSyscallError("recvmsg", err))
		case n == 0 && seen:
			return p, nil
		case n != 8:
			return p, errStubEnded
		}
		step, e := binary.LittleEndian.Uint32(b), syscall.Errno(binary.LittleEndian.Uint32(b[4:]))
		switch step {
		case stepListener:
			seen = true
			if e == 0 {
				if p.listener, err = receivedFD(oob[:oobn]); err != nil {
					return p, err
				}
				if err := (&notify{fd: p.listener}).usable(); err != nil {
					return p, fmt.Errorf("%w: %w", ErrNotBegun, err)
				}
			}
			if err := begins(); err != nil {
				return p, fmt.Errorf("%w: %w", ErrNotBegun, err)
			}
			if err := unix.Sendto(sock, []byte{byte(frontGoOn)}, unix.MSG_NOSIGNAL, nil); err != nil {
				return p, fmt.Errorf("%w: %w", ErrNotBegun, os.NewSyscallError("sendto", err))
			}
		case stepInherited:
			if fd, err := receivedFD(oob[:oobn]); err == nil {
				p.inherited = append(p.inherited, inheritedSocket{fd, int(e)})
			}
		case stepExec:
			return p, &StartError{Program: name, Err: e}
		default:
			return p, filterError(e)
		}
	}
}

func receivedFD(oob []byte) (int, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err == nil && len(msgs) == 1 {
		if fds, err := unix.ParseUnixRights(&msgs[0]); err == nil && len(fds) == 1 {
			return fds[0], nil
		}
	}
	return -1, errors.New("launch: the stub passed no listener")
}
