// SPDX-License-Identifier: Apache-2.0

package runs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is where the process of [Serve] listens. It is beside /run/smcr: containers that share that must not reach root of the host.
const Socket = "/run/smcr-run.sock"

// answerTime bounds the wait for an answer.
const answerTime = 5 * time.Second

// ErrNobody means that no process of root listens at the socket.
var ErrNobody = errors.New("no process of root makes cgroups for the programs of users here: 'systemctl start smcr-run.socket' does")

// Ask has this process be in a cgroup for a run, as attach.Table.Enter does.
func Ask(ctx context.Context) error { return ask(ctx, Socket) }

func ask(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return ErrNobody
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	if !ofRoot(conn.(*net.UnixConn)) {
		return ErrNobody
	}
	deadline, _ := ctx.Deadline()
	if err := conn.SetReadDeadline(deadline); err != nil {
		return err
	}
	b, err := io.ReadAll(io.LimitReader(conn, 16))
	if err != nil {
		return fmt.Errorf("a cgroup for the program: %w", err)
	}
	errno, err := strconv.ParseUint(string(b), 10, 16)
	if err != nil {
		return fmt.Errorf("a cgroup for the program: %w", io.ErrUnexpectedEOF)
	}
	if errno != 0 {
		return fmt.Errorf("a cgroup for the program: %w", syscall.Errno(errno))
	}
	return nil
}

// ofRoot reports whether root listens at the other end.
func ofRoot(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	cerr := raw.Control(func(fd uintptr) { cred, err = credentials(fd) })
	return cerr == nil && err == nil && cred.Uid == 0
}

// credentials returns who is at the other end of a socket: who has called connect() or listen().
func credentials(fd uintptr) (*unix.Ucred, error) {
	cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	return cred, os.NewSyscallError("getsockopt", err)
}

// inherited is the descriptor of a socket that another process has passed (sd_listen_fds(3)).
const inherited = 3

// Inherited returns the socket that the process which has started this one has passed.
func Inherited() (*net.UnixListener, error) {
	f := os.NewFile(inherited, "socket")
	if f == nil {
		return nil, fmt.Errorf("the socket of smcr-run.socket: %w", os.ErrInvalid)
	}
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("the socket of smcr-run.socket: %w", err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("the socket of smcr-run.socket: %w", os.ErrInvalid), l.Close())
	}
	return u, nil
}

// Listen makes the socket, at which every user may connect, for a process that is to inherit it. The error matches os.ErrExist if
// somebody listens there.
func Listen() (*os.File, error) {
	l, err := listen(Socket)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.File()
}

// listen listens at a path. What an earlier process has left there is replaced.
func listen(socket string) (*net.UnixListener, error) {
	there, err := taken(socket)
	if err != nil {
		return nil, err
	}
	if there {
		return nil, fmt.Errorf("%s: a process listens: %w", socket, os.ErrExist)
	}
	// Only root can write to the directory: nobody else makes this file.
	next := fmt.Sprintf("%s.%d", socket, os.Getpid())
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: next, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if err = os.Chmod(next, 0o666); err == nil {
		err = os.Rename(next, socket)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(next), l.Close())
	}
	return l, nil
}

// taken reports whether a process has a socket at a path. Who connects asks for a cgroup, so a socket of another type tries it.
func taken(path string) (bool, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return false, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	return errors.Is(unix.Connect(fd, &unix.SockaddrUnix{Name: path}), unix.EPROTOTYPE), nil
}

// StackRuns reports whether a stack in a directory such as /run/smcr answers commands: the file name is that of package place.
func StackRuns(dir, name string) bool {
	all, _ := filepath.Glob(filepath.Join(dir, "*", name))
	for _, socket := range all {
		if c, err := net.DialTimeout("unixpacket", socket, time.Second); err == nil {
			_ = c.Close()
			return true
		}
	}
	return false
}
