// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The service writes into the ends that launchers pass, and whoever reads there can ask the
// kernel who has written (SCM_CREDENTIALS): the stack. So an end must not lead to a process that
// the launcher could not have passed a descriptor to. ownPair asks the kernel for that:
//
//	a unix stream without a name at either end | socketpair() made it: who listens, and who was
//	                                           | accepted, has a name, which cannot be taken away
//	SO_PEERCRED is the launcher                | it was the launcher's process that made it
//	SO_PEERPIDFD is the launcher's process     | the same, where the number of the launcher is 0, as
//	                                           | that of every process in a PID namespace that the
//	                                           | service does not see: see process
//
// The launcher makes the pair and not the service, because SO_PEERCRED of both ends is who made
// it. A pair of the service would let each user show another process a socket of root.

// errEnd is wrapped by the error of an end that the service does not use.
var errEnd = errors.New("the stack does not use this end of a connection")

// ownPair returns nil if fd is an end of a pair that the process of the launcher has made with
// socketpair(). It changes nothing. Unix sockets of other types do not get here: see passable.
func (l *Launcher) ownPair(fd int) error {
	for _, call := range []uintptr{unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME} {
		switch family, size, err := rawName(call, fd); {
		case err != nil:
			return fmt.Errorf("%w: %w", errEnd, err)
		case family != unix.AF_UNIX:
			return fmt.Errorf("%w: it is not a unix stream", errEnd)
		case size > familyLen:
			return fmt.Errorf("%w: it belongs to a socket with a name", errEnd)
		}
	}
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return fmt.Errorf("%w: %w", errEnd, err)
	}
	if int(cred.Pid) != l.PID || cred.Uid != l.UID {
		return fmt.Errorf("%w: another process than the launcher has made it", errEnd)
	}
	if l.PID == 0 && l.unseen != (process{}) && processOf(fd) != l.unseen {
		return fmt.Errorf("%w: another process than the launcher, of a PID namespace that the stack does not see, has made it", errEnd)
	}
	return nil
}

// A process tells processes apart whose number this process does not see. It is the file behind a
// pidfd, of which each process of the machine has one of its own since Linux 6.9. Before, all
// processes have the same one, and before Linux 6.5 the zero value.
type process struct{ dev, ino uint64 }

// processOf returns the process that made the other end of a unix socket, or the zero value if it
// has ended.
func processOf(fd int) process {
	pidfd, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, soPeerPidfd)
	if err != nil {
		return process{}
	}
	defer unix.Close(pidfd)
	var st unix.Stat_t
	if unix.Fstat(pidfd, &st) != nil {
		return process{}
	}
	return process{dev: st.Dev, ino: st.Ino}
}

// familyLen is the length of the address of a unix socket without a name: that of the family.
const familyLen = 2

// rawName returns the family and the length of an address of a socket. The length tells a socket
// without a name from one whose name is made of zeros.
func rawName(call uintptr, fd int) (family uint16, size uint32, err error) {
	var sa unix.RawSockaddrAny
	size = unix.SizeofSockaddrAny
	if _, _, e := unix.Syscall(call, uintptr(fd), uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size))); e != 0 {
		return 0, 0, e
	}
	return sa.Addr.Family, size, nil
}

// checkEnd refuses the end d of the connection c unless the launcher has made its pair. It owns d
// if the result is false. ss.mu is held.
func (ss *session) checkEnd(c *Conn, m Message, d *Descriptor) bool {
	err := d.Control(ss.l.ownPair)
	if err == nil {
		return true
	}
	ss.s.warnings.Warn("an end of a connection was refused", "uid", ss.l.UID, "launcher", ss.l.PID, "message", m.Type, "err", err)
	ss.wg.Go(func() { _ = d.Close() }) // without MarkUnread, which would change it
	c.SetCloseReason(err.Error())
	c.cancel(err)
	return false
}
