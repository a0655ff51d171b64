// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"smcr/userstack/internal/bounded"
)

// systemd accepts messages of a service (sd_notify) from the process that it has started: by
// default from no other. If that is a waiter, the program gets another socket, and the waiter
// passes the messages on, with their descriptors. The waiter stays the main process: systemd has
// the exit status of its own children only, and Restart=on-failure needs it. So the program is not
// made the main process (MAINPID=).

// notifyEnv is the variable with the name of the socket.
const notifyEnv = "NOTIFY_SOCKET"

// relayTo returns the environment with the name of a socket of f's, if a service manager waits
// for messages.
func (f *Front) relayTo(env []string) ([]string, error) {
	i := slices.IndexFunc(env, func(kv string) bool { return strings.HasPrefix(kv, notifyEnv+"=") })
	if i < 0 || notifyAddr(env[i][len(notifyEnv)+1:]) == nil {
		return env, nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	// The kernel chooses the name. Whoever knows it may send, so the waiter looks who has sent.
	err = unix.Bind(fd, &unix.SockaddrUnix{})
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	}
	name := ""
	if err == nil {
		name, err = nameOf(fd)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("launch: a socket for %s: %w", notifyEnv, err)
	}
	f.relay = fd
	env = slices.Clone(env)
	env[i] = notifyEnv + "=" + name
	return env, nil
}

func nameOf(fd int) (string, error) {
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return "", os.NewSyscallError("getsockname", err)
	}
	u, ok := sa.(*unix.SockaddrUnix)
	if !ok || !strings.HasPrefix(u.Name, "@") {
		return "", os.ErrInvalid
	}
	return u.Name, nil
}

// notifyAddr returns the address of a service manager's socket, or nil if there is none that can
// be reached.
func notifyAddr(name string) unix.Sockaddr {
	if !strings.HasPrefix(name, "/") && !strings.HasPrefix(name, "@") {
		return nil
	}
	return &unix.SockaddrUnix{Name: name}
}

func (f *Front) closeRelay() {
	if f.relay >= 0 {
		_ = unix.Close(f.relay)
		f.relay = -1
	}
}

// relayed passes messages of the program to the service manager.
type relayed struct {
	in, out  int
	to       unix.Sockaddr
	launcher int // the ancestor of all who may send
	// closing has a place for each message whose descriptors are being closed.
	closing chan struct{}
}

func newRelay(in, launcher int) *relayed {
	out, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		_ = unix.Close(in)
		return nil
	}
	return &relayed{in: in, out: out, to: notifyAddr(os.Getenv(notifyEnv)), launcher: launcher,
		closing: make(chan struct{}, maxNotifyClosing)}
}

// fd returns the descriptor that is readable when a message waits, or -1.
func (r *relayed) fd() int32 {
	if r == nil || len(r.closing) == cap(r.closing) {
		return -1
	}
	return int32(r.in)
}

// maxNotify is the size of the largest message and of its control messages: systemd takes no more
// than a page, and 253 descriptors.
const (
	maxNotify    = 64 << 10
	maxNotifyFDs = 253
	// maxNotifyOnce is how many messages are read before signals and the launcher get their turn.
	maxNotifyOnce = 64
	// maxNotifyClosing is how many messages may have descriptors that are being closed. More are
	// not received. A close takes as long as whoever has sent the descriptor wants.
	maxNotifyClosing = 32
)

// pass passes messages that wait on. Every user can send some, so it does not wait for anything that
// came with them.
func (r *relayed) pass() {
	if r == nil {
		return
	}
	b, oob := make([]byte, maxNotify), make([]byte, unix.CmsgSpace(unix.SizeofUcred)+unix.CmsgSpace(4*maxNotifyFDs))
	for i := 0; i < maxNotifyOnce && len(r.closing) < cap(r.closing); i++ {
		n, oobn, _, _, err := unix.Recvmsg(r.in, b, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return
		}
		fds := rightsIn(oob[:oobn])
		if r.may(oob[:oobn]) {
			var rights []byte
			if len(fds) > 0 {
				rights = unix.UnixRights(fds...)
			}
			_ = unix.Sendmsg(r.out, b[:n], rights, r.to, unix.MSG_NOSIGNAL)
		}
		if len(fds) > 0 {
			r.closing <- struct{}{} // there is room
			// No guard: it only makes system calls.
			go func() {
				for _, fd := range fds {
					_ = bounded.Close(fd)
				}
				<-r.closing
			}()
		}
	}
}

// may reports whether the sender of a message is of this user, or root, or one of the program's
// processes.
func (r *relayed) may(oob []byte) bool {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return false
	}
	for i := range msgs {
		c, err := unix.ParseUnixCredentials(&msgs[i])
		if err != nil {
			continue
		}
		if c.Uid == 0 || int(c.Uid) == os.Geteuid() {
			return true
		}
		for pid := int(c.Pid); pid > 1; pid = parentOf(pid) {
			if pid == r.launcher {
				return true
			}
		}
	}
	return false
}

// parentOf returns the parent of a process, or 0.
func parentOf(pid int) int {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0
	}
	parent, _ := statusInt(b, "PPid:")
	return parent
}

// isStopped reports whether the text of /proc/PID/status is that of a stopped process.
func isStopped(status []byte) bool { return bytes.Contains(status, []byte("\nState:\tT")) }

// rightsIn returns the descriptors of a control message.
func rightsIn(oob []byte) (fds []int) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range msgs {
		if got, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}
