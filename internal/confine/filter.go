// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Call allows a system call.
type Call struct {
	// Name is the name in the manual, for messages.
	Name string
	// Nr is the number on this architecture. A call that the architecture does not have
	// is negative and is ignored.
	Nr int
	// If restricts an argument. Nil allows all arguments. Only the lower 32 bits of an
	// argument count.
	If *Cond
}

// A Cond is a condition for one argument of a system call. At most one of OneOf, With and
// Without is set.
type Cond struct {
	Arg     int      // 0 to 5
	OneOf   []uint32 // the argument is one of these
	With    uint32   // all these bits are set
	Without uint32   // none of these bits is set
}

// An Action is what happens on a system call that is not allowed.
type Action int

const (
	// Refuse returns EPERM to the caller. The kernel's audit log has the call, if the
	// system logs such calls (seccomp(2), SECCOMP_FILTER_FLAG_LOG).
	Refuse Action = iota
	// Trap ends the process with SIGSYS, with the stack of the caller on standard error.
	// It is for tests.
	Trap
)

// Values of linux/seccomp.h.
const (
	retKillProcess = 0x80000000
	retTrap        = 0x00030000
	retErrno       = 0x00050000
	retAllow       = 0x7fff0000

	setModeFilter = 1
	flagTSync     = 1
	flagLog       = 2

	dataNr   = 0
	dataArch = 4
	dataArgs = 16
)

// Filter allows only these system calls from now on, for all threads. clone3 fails with
// ENOSYS, unless it is in the list: its arguments are in memory, where a filter cannot see
// them, and callers then use clone.
func Filter(calls []Call, otherwise Action) error {
	prog, err := program(calls, otherwise)
	if err != nil {
		return err
	}
	// One thread installs the filter for all (TSYNC). Without CAP_SYS_ADMIN it needs
	// no_new_privs, which the other threads get with the filter.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	tid, _, errno := unix.Syscall(unix.SYS_SECCOMP, setModeFilter, flagTSync|flagLog, uintptr(unsafe.Pointer(&fprog)))
	switch {
	case errno != 0:
		return os.NewSyscallError("seccomp", errno)
	case tid != 0:
		return fmt.Errorf("seccomp: thread %d has another filter", tid)
	}
	return nil
}

// A leaf is what happens for system calls from a number on, up to the next leaf.
type leaf struct {
	from uint32
	code []unix.SockFilter
}

// program returns the filter: a binary search of the number, so that a call costs few
// instructions. For calls that are allowed with any arguments, kernels since 5.11 do not run
// it at all.
func program(calls []Call, otherwise Action) ([]unix.SockFilter, error) {
	deny := []unix.SockFilter{ret(retErrno | uint32(unix.EPERM))}
	if otherwise == Trap {
		deny = []unix.SockFilter{ret(retTrap)}
	}
	calls = slices.DeleteFunc(slices.Clone(calls), func(c Call) bool { return c.Nr < 0 })
	if !slices.ContainsFunc(calls, func(c Call) bool { return c.Nr == unix.SYS_CLONE3 }) {
		calls = append(calls, Call{"clone3", unix.SYS_CLONE3, nil})
	}
	slices.SortFunc(calls, func(a, b Call) int { return cmp.Compare(a.Nr, b.Nr) })
	leaves := []leaf{{0, deny}}
	for i, c := range calls {
		if i > 0 && calls[i-1].Nr == c.Nr {
			return nil, fmt.Errorf("%s and %s have the same number", calls[i-1].Name, c.Name)
		}
		code := []unix.SockFilter{ret(retAllow)}
		switch {
		case c.If != nil:
			var err error
			if code, err = c.If.code(deny); err != nil {
				return nil, fmt.Errorf("%s: %w", c.Name, err)
			}
		case c.Name == "clone3":
			code = []unix.SockFilter{ret(retErrno | uint32(unix.ENOSYS))}
		}
		leaves = add(leaves, leaf{uint32(c.Nr), code})
		leaves = append(leaves, leaf{uint32(c.Nr) + 1, deny})
	}
	p := []unix.SockFilter{load(dataArch), jump(unix.BPF_JEQ, auditArch, 1, 0), ret(retKillProcess), load(dataNr)}
	return append(p, search(leaves)...), nil
}

// add adds the next leaf. It replaces an empty range, and continues one with the same code.
func add(leaves []leaf, l leaf) []leaf {
	last := len(leaves) - 1
	if leaves[last].from != l.from {
		return append(leaves, l)
	}
	if last > 0 && slices.Equal(leaves[last-1].code, l.code) {
		return leaves[:last]
	}
	leaves[last] = l
	return leaves
}

// search returns code that finds the leaf of the number in the accumulator.
func search(leaves []leaf) []unix.SockFilter {
	if len(leaves) == 1 {
		return leaves[0].code
	}
	middle := len(leaves) / 2
	low, high := search(leaves[:middle]), search(leaves[middle:])
	// A conditional jump reaches 255 instructions, so a long one follows it.
	p := []unix.SockFilter{jump(unix.BPF_JGE, leaves[middle].from, 0, 1), {Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(len(low))}}
	return append(append(p, low...), high...)
}

// code returns the instructions that check the condition.
func (c *Cond) code(deny []unix.SockFilter) ([]unix.SockFilter, error) {
	p := []unix.SockFilter{load(uint32(dataArgs + 8*c.Arg + argLow))}
	switch {
	case c.Arg < 0 || c.Arg > 5 || len(c.OneOf) > 200:
		return nil, fmt.Errorf("bad condition for argument %d", c.Arg)
	case len(c.OneOf) > 0:
		for i, v := range c.OneOf {
			p = append(p, jump(unix.BPF_JEQ, v, len(c.OneOf)-i, 0))
		}
	case c.With != 0:
		p = append(p, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: c.With}, jump(unix.BPF_JEQ, c.With, 1, 0))
	case c.Without != 0:
		p = append(p, jump(unix.BPF_JSET, c.Without, 0, 1))
	default:
		return nil, errors.New("empty condition")
	}
	return append(append(p, deny...), ret(retAllow)), nil
}

func load(off uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
}

func ret(k uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: k} }

func jump(op uint16, k uint32, jt, jf int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, K: k, Jt: uint8(jt), Jf: uint8(jf)}
}
