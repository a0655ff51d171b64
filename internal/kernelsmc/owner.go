// SPDX-License-Identifier: Apache-2.0

package kernelsmc

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"smcr/guard"
)

// make makes the socket as thread tid would: in its network namespace, with its user and group as owner, which firewalls check and
// nobody can change later. What is known about the thread may be that of another thread which has its number by now. Then the call
// is over, and no program gets the socket.
func (s *Supervisor) make(tid, domain, flags int) (fd int, reason string, err error) {
	task := "/proc/" + strconv.Itoa(tid)
	netns, err := os.Open(task + "/ns/net")
	if err != nil {
		return -1, ReasonNoAccess, err
	}
	defer netns.Close()
	here, err := sameFile(netns, "/proc/thread-self/ns/net")
	if err != nil {
		return -1, ReasonNoAccess, err
	}
	own := [2]int{os.Geteuid(), os.Getegid()}
	owner := own
	if own[0] == 0 { // only root can act as others
		if owner, err = ownerOf(task); err != nil {
			return -1, ReasonNoAccess, err
		}
	}
	reason = ReasonNoSocket
	if here && owner == own {
		fd, err = s.c.socket(domain, flags)
	} else {
		// The thread ends, so nothing of it is restored.
		guard.OnThread("a socket of another user or network namespace", func() (restored bool) {
			if !here {
				if err = os.NewSyscallError("setns", unix.Setns(int(netns.Fd()), unix.CLONE_NEWNET)); err != nil {
					reason = ReasonNetns
					return false
				}
			}
			if err = actAs(owner); err == nil {
				fd, err = s.c.socket(domain, flags)
			}
			return false
		})
	}
	if err != nil {
		return -1, reason, err
	}
	if err := s.c.setBuffers(fd); err != nil {
		s.log.Debug("cannot set the buffer sizes", "err", err)
	}
	return fd, "", nil
}

// sameFile reports whether a file is the one of a name.
func sameFile(f *os.File, name string) (bool, error) {
	a, err1 := f.Stat()
	b, err2 := os.Stat(name)
	if err := errors.Join(err1, err2); err != nil {
		return false, err
	}
	return os.SameFile(a, b), nil
}

// ownerOf returns the user and group of the files that a task makes.
func ownerOf(task string) (owner [2]int, err error) {
	b, err := os.ReadFile(task + "/status")
	if err != nil {
		return owner, err
	}
	for i, key := range []string{"Uid:", "Gid:"} {
		_, rest, _ := strings.Cut(string(b), "\n"+key)
		line, _, _ := strings.Cut(rest, "\n")
		ids := strings.Fields(line) // real, effective, saved, that of the file system
		if len(ids) != 4 {
			return owner, fmt.Errorf("kernelsmc: no %s in status: %w", key, unix.ESRCH)
		}
		if owner[i], err = strconv.Atoi(ids[3]); err != nil {
			return owner, err
		}
	}
	return owner, nil
}

// actAs has this thread make files of another user and group.
func actAs(owner [2]int) error {
	for i, set := range []uintptr{unix.SYS_SETFSUID, unix.SYS_SETFSGID} {
		const same = ^uintptr(0) // changes nothing: the call returns the present id
		_, _, _ = unix.RawSyscall(set, uintptr(owner[i]), 0, 0)
		if is, _, _ := unix.RawSyscall(set, same, 0, 0); is != uintptr(owner[i]) {
			return fmt.Errorf("kernelsmc: cannot act as user %d, group %d: %w", owner[0], owner[1], unix.EPERM)
		}
	}
	return nil
}
