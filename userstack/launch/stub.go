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
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/internal/retry"
)

// stubName is argv[0] of the stub. Its further arguments are the descriptor of
// the socket to the launcher, flags, the program's path and its argv.
const stubName = "smcr-launch-stub"

const (
	stubAllowIOUring = "u"
	stubKernel       = "k"
	stubNoFlags      = "-"
)

// stubTimeout limits the start of the stub.
const stubTimeout = 10 * time.Second

// Steps of the stub, reported with an errno when they fail.
const (
	stepFilter = iota + 1
	stepExec
	stepListener // with the listener, or with EBUSY and none
)

// MaybeChild does the work of the stub if Run started this process as one: it
// installs the filter, executes the program and does not return. Otherwise it
// returns at once. Call it first in main, before flags are parsed.
func MaybeChild() {
	if len(os.Args) < 5 || os.Args[0] != stubName {
		return
	}
	runtime.LockOSThread()
	sock, err := strconv.Atoi(os.Args[1])
	if err != nil {
		os.Exit(ExitNotExecutable)
	}
	unix.CloseOnExec(sock)
	if err := installFilter(sock, os.Args[2]); err != nil {
		report(sock, stepFilter, err, -1)
		os.Exit(ExitNotExecutable)
	}
	// Only this thread has the filter, so it must do the exec.
	err = syscall.Exec(os.Args[3], os.Args[4:], os.Environ())
	report(sock, stepExec, err, -1)
	os.Exit(ExitNotExecutable)
}

// installFilter installs the filter and passes its listener through sock.
func installFilter(sock int, flags string) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
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
	fd, e := install()
	if e == unix.EINVAL && flags == stubKernel { // before Linux 5.19
		options &^= unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
		fd, e = install()
	}
	runtime.KeepAlive(prog)
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

// startStub starts the stub and waits until it has executed the program.
// listener is -1 if the filter of another launcher is in place.
func startStub(ctx context.Context, cfg *Config, path string, env []string) (_ *os.Process, listener int, err error) {
	socks, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("launch: %w", os.NewSyscallError("socketpair", err))
	}
	defer unix.Close(socks[0])
	flags := stubNoFlags
	switch {
	case cfg.Kernel != nil:
		flags = stubKernel
	case cfg.AllowIOUring:
		flags = stubAllowIOUring
	}
	argv := append([]string{stubName, strconv.Itoa(socks[1]), flags, path}, cfg.Argv...)
	pid, err := children.start(argv, &syscall.ProcAttr{Dir: cfg.Dir, Env: env, Files: stubFiles(cfg, socks[1])})
	_ = unix.Close(socks[1])
	if err != nil {
		return nil, -1, fmt.Errorf("launch: cannot start the stub: %w", err)
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return nil, -1, fmt.Errorf("launch: %w", err)
	}
	listener, err = followStub(ctx, socks[0], cfg.Argv[0])
	if err != nil {
		if listener >= 0 {
			_ = unix.Close(listener)
		}
		_ = p.Kill()
		_, _ = p.Wait()
		children.remove(pid)
		return nil, -1, err
	}
	return p, listener, nil
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
// exec causes.
func followStub(ctx context.Context, sock int, program string) (listener int, err error) {
	listener = -1
	tv := unix.NsecToTimeval(int64(100 * time.Millisecond))
	if err := unix.SetsockoptTimeval(sock, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return -1, fmt.Errorf("launch: %w", os.NewSyscallError("setsockopt", err))
	}
	deadline := time.Now().Add(stubTimeout)
	for seen := false; ; {
		b, oob := make([]byte, 8), make([]byte, unix.CmsgSpace(4))
		n, oobn := 0, 0
		err := retry.While(retry.NoMemory, roomTime, func() (err error) {
			n, oobn, _, _, err = unix.Recvmsg(sock, b, oob, unix.MSG_CMSG_CLOEXEC)
			return err
		})
		switch {
		case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR):
			if ctx.Err() != nil {
				return listener, fmt.Errorf("launch: %w", context.Cause(ctx))
			}
			if time.Now().After(deadline) {
				return listener, fmt.Errorf("launch: the stub did not start within %v", stubTimeout)
			}
			continue
		case err != nil:
			return listener, fmt.Errorf("launch: %w", os.NewSyscallError("recvmsg", err))
		case n == 0 && seen:
			return listener, nil
		case n != 8:
			return listener, errors.New("launch: the stub ended early (main must call MaybeChild first)")
		}
		step, e := binary.LittleEndian.Uint32(b), syscall.Errno(binary.LittleEndian.Uint32(b[4:]))
		switch step {
		case stepListener:
			seen = true
			if e == 0 {
				if listener, err = receivedFD(oob[:oobn]); err != nil {
					return -1, err
				}
			}
		case stepExec:
			return listener, &StartError{Program: program, Err: e}
		default:
			if e == unix.EINVAL || e == unix.ENOSYS {
				return listener, fmt.Errorf("%w: %w", ErrUnsupported, e)
			}
			return listener, fmt.Errorf("launch: cannot install the seccomp filter: %w", e)
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
