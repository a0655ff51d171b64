// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"fmt"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/userstack/internal/rights"
)

// SetData stores v for Data. All values of one Launcher must have the same type.
func (l *Launcher) SetData(v any) { l.data.Store(v) }

// Data returns the value of the last SetData, or nil.
func (l *Launcher) Data() any { return l.data.Load() }

// peer returns the process at the other end of c.
func peer(c *net.UnixConn) (*Launcher, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	var cred *unix.Ucred
	var groups []uint32
	var cerr error
	var unseen process
	if err := rc.Control(func(fd uintptr) {
		if cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); cerr != nil {
			cerr = os.NewSyscallError("getsockopt SO_PEERCRED", cerr)
			return
		}
		if cred.Pid == 0 {
			unseen = processOf(int(fd))
		}
		groups, cerr = peerGroups(int(fd))
	}); err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	if cerr != nil {
		return nil, fmt.Errorf("broker: %w", cerr)
	}
	l := &Launcher{PID: int(cred.Pid), UID: cred.Uid, GID: cred.Gid, Groups: groups, unseen: unseen}
	if l.UID == 0 {
		l.rights = peerRights(c, l.PID)
	}
	return l, nil
}

// peerGroups returns the supplementary groups of the process at the other end.
func peerGroups(fd int) ([]uint32, error) {
	for n := 32; ; {
		groups := make([]uint32, n)
		size := uint32(4 * n)
		_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case e == 0:
			return groups[:min(int(size/4), n)], nil
		case e == unix.ENODATA: // a process without credentials of its own, such as a kernel's
			return nil, nil
		case e != unix.ERANGE || int(size/4) <= n:
			return nil, os.NewSyscallError("getsockopt SO_PEERGROUPS", e)
		}
		n = int(size / 4)
	}
}

// peerRights returns the rights that the process at the other end of c could
// have now, or none if it cannot be looked at.
func peerRights(c *net.UnixConn, pid int) rights.Rights {
	if pid <= 0 { // the process is in a PID namespace that this one cannot see
		return 0
	}
	pidfd := peerPidfd(c)
	defer pidfd.Close()
	r := rights.Permitted(pid)
	// If the process still lives, pid did not change its meaning since peerPidfd.
	lives := false
	if err := pidfd.Control(func(fd int) error {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		lives = n == 0
		return err
	}); err != nil || !lives {
		return 0
	}
	return r
}
