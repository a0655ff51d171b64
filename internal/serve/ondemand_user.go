// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"runtime"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/internal/confine"
	"smcr/internal/place"
	"smcr/nl"
	"smcr/userstack/service"
)

// A unitUser is the user of the systemd unit, and what a stack that root starts as this user gets.
type unitUser struct {
	uid, gid uint32
	caps     []uintptr
}

// findUnitUser returns nil if there is no such user, or if this process, which is not root or in a
// sandbox, has not what the stack needs.
func findUnitUser() *unitUser {
	have, err := confine.Effective()
	if err != nil || os.Geteuid() != 0 {
		return nil
	}
	for _, c := range []int{unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_CHOWN} {
		if !have.Has(c) {
			return nil
		}
	}
	x := &unitUser{}
	for _, p := range privileges {
		if !have.Has(p.number) {
			return nil
		}
		x.caps = append(x.caps, uintptr(p.number))
	}
	if have.Has(startPrivilege.number) {
		x.caps = append(x.caps, uintptr(startPrivilege.number))
	}
	u, err := user.Lookup(place.UnitUser)
	if err != nil {
		return nil
	}
	uid, uerr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gerr := strconv.ParseUint(u.Gid, 10, 32)
	if uerr != nil || gerr != nil || uid == 0 {
		return nil
	}
	x.uid, x.gid = uint32(uid), uint32(gid)
	return x
}

// asUnitUser returns the attributes of a process that runs as the user of the unit, and gives
// this user the place of this network namespace. Then smcr.service can take over from the stack:
// it is of the same user. A stack of root could not hand over: its place belongs to root.
//
// It returns nil if that is not possible. The error matches service.ErrRunning if there is a stack.
func asUnitUser() (*syscall.SysProcAttr, error) {
	x := findUnitUser()
	if x == nil {
		return nil, nil
	}
	switch err := place.Give(x.uid, x.gid); {
	case errors.Is(err, place.ErrTaken):
		return nil, service.ErrRunning
	case err != nil:
		return nil, nil // the stack of root says what is wrong with the place
	}
	return &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: x.uid, Gid: x.gid}, AmbientCaps: x.caps}, nil
}

// becomeUnitUser executes this program again as the user of the unit, if root wants to take over from
// a stack that smcr run has started as this user. It returns if that is not so, or not possible.
func becomeUnitUser(ctx context.Context) error {
	x := findUnitUser()
	if x == nil || !onDemandRuns(ctx) {
		return nil
	}
	startRuns()
	// The rights of a thread are those of the process after it has executed a program.
	runtime.LockOSThread() // for good: it has not the rights of the others then
	if err := x.become(); err != nil {
		return fmt.Errorf("become user %s: %w", place.UnitUser, err)
	}
	return fmt.Errorf("execute smcr as user %s: %w", place.UnitUser, syscall.Exec("/proc/self/exe", os.Args, os.Environ()))
}

// become changes the calling thread. It cannot go back.
func (x *unitUser) become() error {
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return err
	}
	for _, call := range [][4]uintptr{
		{unix.SYS_SETGROUPS},
		{unix.SYS_SETRESGID, uintptr(x.gid), uintptr(x.gid), uintptr(x.gid)},
		{unix.SYS_SETRESUID, uintptr(x.uid), uintptr(x.uid), uintptr(x.uid)},
	} {
		if _, _, e := unix.RawSyscall(call[0], call[1], call[2], call[3]); e != 0 {
			return e
		}
	}
	var set [2]unix.CapUserData
	for _, c := range x.caps {
		d := &set[c/32]
		d.Effective |= 1 << (c % 32)
		d.Permitted, d.Inheritable = d.Effective, d.Effective
	}
	if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &set[0]); err != nil {
		return err
	}
	for _, c := range x.caps {
		if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, c, 0, 0); err != nil {
			return err
		}
	}
	return nil
}

// onDemandRuns reports whether the stack of this network namespace is one that smcr run has started.
func onDemandRuns(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c, err := nl.DialUser(ctx)
	if err != nil {
		return false
	}
	defer c.Close()
	info, err := c.SysInfo(ctx)
	if err != nil || info.PID == 0 {
		return false
	}
	p, err := running(int(info.PID))
	return err == nil && slices.Contains(p.flags, "--on-demand")
}
