// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Caps is a set of capabilities: bit N stands for capability N (capabilities(7)).
type Caps uint64

// Of returns the set of these capabilities, such as unix.CAP_NET_RAW.
func Of(caps ...int) (s Caps) {
	for _, c := range caps {
		s |= 1 << c
	}
	return s
}

// Has reports whether the set has a capability.
func (s Caps) Has(c int) bool { return s&(1<<c) != 0 }

// ErrThreads means that the threads of the process cannot be changed together, because it is
// built with cgo. It matches [errors.ErrUnsupported].
var ErrThreads = fmt.Errorf("the program is built with cgo: %w", errors.ErrUnsupported)

// Effective returns the effective capabilities of the calling thread.
func Effective() (Caps, error) {
	_, sets, err := capget()
	return Caps(sets[0].Effective) | Caps(sets[1].Effective)<<32, err
}

// KeepOnly takes all capabilities but those in keep from the process: from the effective,
// permitted, inheritable, ambient and bounding sets of all threads. It also prevents that a
// program that the process executes gets any rights that the process does not have
// (PR_SET_NO_NEW_PRIVS). The error matches [ErrThreads] if the program is built with cgo;
// then nothing has changed.
func KeepOnly(keep Caps) error {
	if err := all(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	header, sets, err := capget()
	if err != nil {
		return err
	}
	if (Caps(sets[0].Permitted) | Caps(sets[1].Permitted)<<32).Has(unix.CAP_SETPCAP) {
		// It needs this capability, so it comes first.
		if err := dropBounding(keep); err != nil {
			return err
		}
	}
	if err := all(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL); err != nil {
		return fmt.Errorf("ambient capabilities: %w", err)
	}
	for i := range sets {
		some := uint32(keep >> (32 * i))
		sets[i].Permitted &= some
		sets[i].Effective &= some
		sets[i].Inheritable = 0
	}
	// All threads read the header and the sets, so these must not move.
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(&header)
	pin.Pin(&sets)
	if err := all(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&sets[0]))); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	return nil
}

// dropBounding removes the capabilities that are not in keep from the bounding set.
func dropBounding(keep Caps) error {
	last, err := lastCap()
	if err != nil {
		return err
	}
	for c := range last + 1 {
		if keep.Has(c) {
			continue
		}
		if err := all(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, uintptr(c)); err != nil {
			return fmt.Errorf("bounding set, capability %d: %w", c, err)
		}
	}
	return nil
}

// lastCap returns the highest capability of the kernel.
func lastCap() (int, error) {
	b, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || n < 0 || n > 63 {
		return 0, fmt.Errorf("/proc/sys/kernel/cap_last_cap has %q", b)
	}
	return n, nil
}

func capget() (unix.CapUserHeader, [2]unix.CapUserData, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return header, sets, os.NewSyscallError("capget", err)
	}
	return header, sets, nil
}

// all makes a system call on all threads.
func all(nr uintptr, args ...uintptr) error {
	args = append(slices.Clip(args), 0, 0, 0, 0, 0, 0)
	_, _, errno := syscall.AllThreadsSyscall6(nr, args[0], args[1], args[2], args[3], args[4], args[5])
	switch errno {
	case 0:
		return nil
	case syscall.ENOTSUP:
		return ErrThreads
	}
	return errno
}
