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

// The launcher may be root or have capabilities that the program has dropped.
// It does everything that the program asks for with the rights of the program.

// rights returns the rights of the thread that made the call, for an option
// that may need some. Only that thread can change them, and it is stopped.
func (n *notif) rights(level, name int) rights.Rights {
	if sockopt.NeedsNoRights(level, name) {
		return 0
	}
	r := rights.Of(strconv.Itoa(n.tid()))
	if !n.valid() { // the rights may be those of another thread
		return 0
	}
	return r
}

// rightly calls f with the TCP socket, or a new one, and with no more rights
// than r. c.mu is held.
func (c *conn) rightly(r rights.Rights, set bool, level, name int, f func(fd int) error) error {
	return c.withSocket(func(fd int) error {
		if !sockopt.NeedsNoRights(level, name) && netnsCookie(fd) != ownNetns() {
			// r are rights in the launcher's network namespace. In another one
			// the launcher may have rights without a capability, as its owner.
			return unix.EPERM
		}
		return sockopt.WithRights(r, set, level, name, func() error { return f(fd) })
	})
}

// netnsCookie returns the cookie of the network namespace of a socket, or 0 if
// it is not known.
func netnsCookie(fd int) uint64 {
	v, _ := place.CookieOf(fd)
	return v
}

// ownNetns returns the cookie of the launcher's network namespace, or 0.
var ownNetns = sync.OnceValue(func() uint64 {
	v, _ := place.Cookie()
	return v
})

// owner is the user and group that own the files that a thread makes.
type owner struct{ uid, gid int }

// launcherIDs returns the effective user and group of the launcher, which never change.
var launcherIDs = sync.OnceValue(func() owner { return owner{os.Geteuid(), os.Getegid()} })

// ownerOf returns the user and group that own the sockets of thread tid.
func ownerOf(tid int) (o owner, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
	if err != nil {
		return o, err
	}
	o.uid, o.gid, err = fsIDs(b)
	return o, err
}

// make calls f, which makes a socket, with the identity of o. Firewalls check
// the creator of a socket, and it cannot be changed later. If the launcher
// cannot act as o, make fails without a call of f. f must not depend on the
// thread.
func (o owner) make(f func() error) error {
	if o == launcherIDs() {
		return f()
	}
	return rights.OnThread(func() (error, bool) { return o.make1(f) })
}

// makeHere is make for the receiver. Its goroutine can end if the thread must
// end.
func (o owner) makeHere(n *notif, f func() error) error {
	if o == launcherIDs() {
		return f()
	}
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() { // it cannot end: see guard.OnThread
		runtime.UnlockOSThread()
		return o.make(f)
	}
	err, restored := o.make1(f)
	if restored {
		runtime.UnlockOSThread()
	} else {
		n.threadChanged = true
	}
	return err
}

// make1 is make on the calling thread. It returns false if the identity of the
// thread could not be restored. Then the thread must end.
func (o owner) make1(f func() error) (err error, restored bool) {
	defer keepDumpable()()
	const same = ^uintptr(0) // changes nothing: the call returns the present id
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

// keepDumpable returns a function that restores PR_SET_DUMPABLE: when a thread
// changes its user, the kernel clears it for the whole process.
func keepDumpable() (restore func()) {
	d, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	return func() {
		if err == nil && d == 1 {
			_ = unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
		}
	}
}

// errOwner means that the launcher does not have the privilege.
var errOwner = errors.New("launch: cannot act as user")

// setOwner makes owner, a struct f_owner_ex, the receiver of signals for
// descriptor fd. It does so as the thread of call n would: the kernel stores
// who set the owner, and checks whether this user may signal the receiver.
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
		// The saved user does not change, so that the program's user cannot
		// trace the launcher.
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(ruid), uintptr(euid), ^uintptr(0)); e != 0 {
			return fmt.Errorf("%w %d: %w", errOwner, euid, e), false
		}
		return set(), false
	})
}

// limitsNetwork reports whether call n, landlock_create_ruleset, may forbid
// connections. The kernel applies such rules to the process that calls
// connect(): for a connection over SMC this is the service. It does not apply them to
// AF_SMC sockets. It does not show which processes have such rules. So all
// programs of the launcher use plain TCP from then on.
func (n *notif) limitsNetwork() bool {
	const netEnd = 16                                           // handled_access_fs, handled_access_net
	if n.Args[0] == 0 || n.Args[1] < netEnd || n.Args[2] != 0 { // a query of the version, or a struct without network rules
		return false
	}
	attr, err := n.read(n.Args[0], netEnd, 0)
	return err == nil && binary.NativeEndian.Uint64(attr[8:]) != 0
}
