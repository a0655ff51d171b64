// SPDX-License-Identifier: Apache-2.0

package waiter

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"smcr/internal/retry"

	"golang.org/x/sys/unix"
)

// systemd accepts messages of a service (sd_notify) from the process that it has started: by default from no other. So the program
// gets another socket, and the waiter passes the messages on, with their descriptors. The waiter stays the main process: systemd
// has the exit status of its own children only, and Restart=on-failure needs it. So the program is not made the main process
// (MAINPID=).

// notifyEnv is the variable with the name of the socket.
const notifyEnv = "NOTIFY_SOCKET"

// relayTo returns the environment with the name of a new socket, that socket, and one for the messages that are passed on, if a
// service manager waits for messages.
func relayTo(env []string) ([]string, []int, error) {
	i := slices.IndexFunc(env, func(kv string) bool { return strings.HasPrefix(kv, notifyEnv+"=") })
	if i < 0 || notifyAddr(env[i][len(notifyEnv)+1:]) == nil {
		return env, nil, nil
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socket", err)
	}
	fds := []int{fd}
	// The kernel chooses the name. Whoever knows it may send, so the waiter looks who has sent.
	err = unix.Bind(fd, &unix.SockaddrUnix{})
	if err == nil {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	}
	name := ""
	if err == nil {
		name, err = nameOf(fd)
	}
	if err == nil {
		fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	}
	if err != nil {
		closeAll(fds)
		return nil, nil, fmt.Errorf("a socket for %s: %w", notifyEnv, err)
	}
	fds = append(fds, fd)
	env = slices.Clone(env)
	env[i] = notifyEnv + "=" + name
	return env, fds, nil
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

// notifyAddr returns the address of a service manager's socket, or nil if there is none that can be reached.
func notifyAddr(name string) unix.Sockaddr {
	if !strings.HasPrefix(name, "/") && !strings.HasPrefix(name, "@") {
		return nil
	}
	return &unix.SockaddrUnix{Name: name}
}

// relayed passes messages of the program to the service manager.
type relayed struct {
	in, out int
	to      unix.Sockaddr
	runner  int // the ancestor of all who may send
	// closing has a place for each message whose descriptors are being closed.
	closing chan struct{}
}

func newRelay(in, out, runner int) *relayed {
	return &relayed{in: in, out: out, to: notifyAddr(os.Getenv(notifyEnv)), runner: runner, closing: make(chan struct{}, maxClosing)}
}

// fd returns the descriptor that is readable when a message waits, or -1.
func (r *relayed) fd() int32 {
	if r == nil || len(r.closing) == cap(r.closing) {
		return -1
	}
	return int32(r.in)
}

const (
	// maxNotify is the size of the largest message, and maxNotifyFDs the number of its descriptors: systemd takes no more than a
	// page, and 253 descriptors.
	maxNotify    = 64 << 10
	maxNotifyFDs = 253
	// maxAtOnce is how many messages are read before signals and the runner get their turn.
	maxAtOnce = 64
	// maxClosing is how many messages may have descriptors that are being closed. More are not received. A close takes as long as
	// whoever has sent the descriptor wants.
	maxClosing = 32
)

// pass passes messages that wait on. Every user can send some, so it does not wait for anything that came with them.
func (r *relayed) pass() {
	if r == nil {
		return
	}
	b, oob := make([]byte, maxNotify), make([]byte, unix.CmsgSpace(unix.SizeofUcred)+unix.CmsgSpace(4*maxNotifyFDs))
	for i := 0; i < maxAtOnce && len(r.closing) < cap(r.closing); i++ {
		var n, oobn int
		err := retry.Interrupted(func() (err error) {
			n, oobn, _, _, err = unix.Recvmsg(r.in, b, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
			return err
		})
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
			go func() {
				for _, fd := range fds {
					closeSoon(fd)
				}
				<-r.closing
			}()
		}
	}
}

// lingerTime is how long a close may wait as SO_LINGER says.
const lingerTime = 20 * time.Millisecond

// closeSoon closes a descriptor that others have sent. A signal ends the wait, and the kernel goes on with the connection as after
// the linger time.
func closeSoon(fd int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tid, closed := unix.Gettid(), make(chan struct{})
	go func() {
		for tick := time.Tick(lingerTime); ; {
			select {
			case <-closed:
				return
			case <-tick:
				_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG) // which the Go runtime does not mind
			}
		}
	}()
	_ = unix.Close(fd)
	close(closed)
}

// may reports whether the sender of a message is of this user, or root, or one of the program's processes.
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
			if pid == r.runner {
				return true
			}
		}
	}
	return false
}

// parentOf returns the parent of a process, or 0.
func parentOf(pid int) int {
	b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "PPid:"); ok {
			parent, _ := strconv.Atoi(strings.TrimSpace(v))
			return parent
		}
	}
	return 0
}

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
