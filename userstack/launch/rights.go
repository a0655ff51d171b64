// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/internal/place"
	"smcr/userstack/internal/rights"
	"smcr/userstack/internal/sockopt"
)

// The launcher may be root, or have been given capabilities, while the program
// has dropped them. What it does at the program's request it does with the
// program's rights.

// rights returns those of the thread that made the call, for an option that may
// need some. They can change by that thread alone, which is stopped.
func (n *notif) rights(level, name int) rights.Rights {
	if sockopt.NeedsNoRights(level, name) {
		return 0
	}
	r := rights.Of(strconv.Itoa(n.tid()))
	if !n.valid() { // it was another thread's
		return 0
	}
	return r
}

// rightly calls f with the TCP socket, or a fresh one, and with no more rights
// than r. c.mu is held.
func (c *conn) rightly(r rights.Rights, set bool, level, name int, f func(fd int) error) error {
	return c.withSocket(func(fd int) error {
		if !sockopt.NeedsNoRights(level, name) && netnsCookie(fd) != ownNetns() {
			// Rights are those over the launcher's network namespace. Over another
			// one the launcher may have some without any capability, as its owner.
			return unix.EPERM
		}
		return sockopt.WithRights(r, set, level, name, func() error { return f(fd) })
	})
}

// netnsCookie tells network namespaces apart by a socket. 0 is unknown.
func netnsCookie(fd int) uint64 {
	v, _ := place.CookieOf(fd)
	return v
}

// ownNetns returns the cookie of the launcher's network namespace, or 0.
var ownNetns = sync.OnceValue(func() uint64 {
	v, _ := place.Cookie()
	return v
})

// owner is who files belong to that a thread makes.
type owner struct{ uid, gid int }

// ownerOf returns whom sockets of thread tid belong to.
func ownerOf(tid int) (o owner, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
	if err != nil {
		return o, err
	}
	o.uid, o.gid, err = fsIDs(b)
	return o, err
}

// make calls f, which makes a socket, as o would: firewalls look at who made it,
// which cannot be changed later. It fails without a call of f if the launcher
// cannot act as o. f must not depend on the thread that it is called on.
func (o owner) make(f func() error) error {
	if os.Geteuid() == o.uid && os.Getegid() == o.gid {
		return f()
	}
	return rights.OnThread(func() (error, bool) { return o.make1(f) })
}

// makeHere is make for the receiver, whose goroutine can end if the thread has to.
func (o owner) makeHere(n *notif, f func() error) error {
	if os.Geteuid() == o.uid && os.Getegid() == o.gid {
		return f()
	}
	runtime.LockOSThread()
	err, restored := o.make1(f)
	if restored {
		runtime.UnlockOSThread()
	} else {
		n.threadChanged = true
	}
	return err
}

// make1 is make on the calling thread. It returns false if the thread is not as
// it was: it must end then.
func (o owner) make1(f func() error) (err error, restored bool) {
	defer keepDumpable()()
	const same = ^uintptr(0) // changes nothing: the call answers who it is
	id := func(nr, id uintptr) uintptr {
		was, _, _ := unix.RawSyscall(nr, id, 0, 0)
		return was
	}
	gid, uid := id(unix.SYS_SETFSGID, uintptr(o.gid)), id(unix.SYS_SETFSUID, uintptr(o.uid))
	if id(unix.SYS_SETFSGID, same) == uintptr(o.gid) && id(unix.SYS_SETFSUID, same) == uintptr(o.uid) {
		err = f()
	} else {
		err = fmt.Errorf("%w %d, group %d: %w", errOwner, o.uid, o.gid, unix.EPERM)
	}
	id(unix.SYS_SETFSUID, uid)
	id(unix.SYS_SETFSGID, gid)
	return err, id(unix.SYS_SETFSUID, same) == uid && id(unix.SYS_SETFSGID, same) == gid
}

// keepDumpable returns what undoes that the kernel takes the whole process for
// one that changed its user, where a thread did.
func keepDumpable() (restore func()) {
	d, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	return func() {
		if err == nil && d == 1 {
			_ = unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
		}
	}
}

// errOwner means that the launcher lacks the privilege.
var errOwner = errors.New("launch: cannot act as user")

// setOwner makes owner, a struct f_owner_ex, the one who gets signals of the
// descriptor fd, as the thread of call n would: the kernel keeps who said so, and
// checks it against whoever is signaled.
func setOwner(n *notif, fd int, owner [2]int32) error {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(n.tid()) + "/status")
	if err != nil {
		return err
	}
	ruid, euid, err := userIDs(b)
	if err != nil {
		return err
	}
	if !n.valid() {
		return unix.ENOENT
	}
	set := func() error {
		if _, _, e := unix.Syscall(unix.SYS_FCNTL, uintptr(fd), unix.F_SETOWN_EX, uintptr(unsafe.Pointer(&owner))); e != 0 {
			return os.NewSyscallError("fcntl F_SETOWN_EX", e)
		}
		return nil
	}
	if ruid == os.Getuid() && euid == os.Geteuid() {
		return set()
	}
	return rights.OnThread(func() (error, bool) { // the thread ends
		defer keepDumpable()()
		// The saved user stays: whoever is the program's user must not trace us.
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(ruid), uintptr(euid), ^uintptr(0)); e != 0 {
			return fmt.Errorf("%w %d: %w", errOwner, euid, e), false
		}
		return set(), false
	})
}

// limitsNetwork reports whether landlock_create_ruleset, which n is, may forbid
// connections. The kernel holds that against who calls connect(), which is the
// service for a connection over SMC, and does not ask for sockets of AF_SMC. It
// does not say who is under such rules, so all programs of the launcher go by
// themselves then.
func (n *notif) limitsNetwork() bool {
	const netEnd = 16                                           // handled_access_fs, handled_access_net
	if n.Args[0] == 0 || n.Args[1] < netEnd || n.Args[2] != 0 { // a question for the version, or before networks
		return false
	}
	attr, err := n.read(n.Args[0], netEnd, 0)
	return err == nil && binary.NativeEndian.Uint64(attr[8:]) != 0
}
