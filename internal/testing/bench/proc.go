// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// tick is the unit of times in /proc/stat and /proc/PID/stat: 1/USER_HZ s, the same on
// every Linux.
const tick = 10 * time.Millisecond

// Proc is a process, as in /proc/PID/stat.
type Proc struct {
	PID, Parent int
	// Name is the first 15 bytes of the program's name.
	Name string
	// Kernel means a kernel thread, which has no program.
	Kernel bool
	// User and System are the CPU time of the process. Children is the CPU time of its
	// children that ended and were waited for.
	User, System, Children time.Duration
}

// Total is the time of the process and of its children that ended.
func (p Proc) Total() time.Duration { return p.User + p.System + p.Children }

// kthread is PF_KTHREAD of the kernel's process flags.
const kthread = 0x00200000

// ParseStat parses /proc/PID/stat (proc(5)).
func ParseStat(s string) (Proc, error) {
	bad := func() (Proc, error) { return Proc{}, fmt.Errorf("bench: no process in %.100q", s) }
	// The name, in parentheses, may contain any character.
	open, end := strings.IndexByte(s, '('), strings.LastIndexByte(s, ')')
	if open < 1 || end < open {
		return bad()
	}
	f := strings.Fields(s[end+1:])
	if len(f) < 15 {
		return bad()
	}
	p := Proc{Name: s[open+1 : end]}
	var n [7]int64
	for i, text := range []string{strings.TrimSpace(s[:open]), f[1], f[6], f[11], f[12], f[13], f[14]} {
		v, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return bad()
		}
		n[i] = v
	}
	p.PID, p.Parent, p.Kernel = int(n[0]), int(n[1]), n[2]&kthread != 0
	p.User, p.System, p.Children = time.Duration(n[3])*tick, time.Duration(n[4])*tick, time.Duration(n[5]+n[6])*tick
	return p, nil
}

// CPU is the first line of /proc/stat: the times of all cores added up.
type CPU struct {
	// Busy is user, nice and system time. Interrupts is the time of hard and soft
	// interrupts. Steal is what the hypervisor took away.
	Busy, Interrupts, Steal, Idle time.Duration
}

// Total is the time that passed on all cores.
func (c CPU) Total() time.Duration { return c.Busy + c.Interrupts + c.Steal + c.Idle }

// ParseCPU parses /proc/stat (proc(5)).
func ParseCPU(s string) (CPU, error) {
	line, _, _ := strings.Cut(s, "\n")
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return CPU{}, fmt.Errorf("bench: no CPU times in %.100q", line)
	}
	var n [8]time.Duration
	for i := range n {
		v, err := strconv.ParseInt(f[i+1], 10, 64)
		if err != nil {
			return CPU{}, fmt.Errorf("bench: no CPU times in %.100q", line)
		}
		n[i] = time.Duration(v) * tick
	}
	return CPU{Busy: n[0] + n[1] + n[2], Idle: n[3] + n[4], Interrupts: n[5] + n[6], Steal: n[7]}, nil
}

// Snapshot is the CPU time of the machine and of each process at a moment.
type Snapshot struct {
	CPU   CPU
	Procs map[int]Proc
}

// ReadSnapshot reads a snapshot from /proc.
func ReadSnapshot() (Snapshot, error) {
	s := Snapshot{Procs: make(map[int]Proc)}
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return s, fmt.Errorf("bench: %w", err)
	}
	if s.CPU, err = ParseCPU(string(b)); err != nil {
		return s, err
	}
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return s, fmt.Errorf("bench: %w", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if ended(err) {
			continue
		}
		if err != nil {
			return s, fmt.Errorf("bench: %w", err)
		}
		p, err := ParseStat(string(b))
		if err != nil {
			return s, err
		}
		s.Procs[p.PID] = p
	}
	return s, nil
}

// ended reports whether reading failed because the process has ended.
func ended(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH)
}

// Tree returns the roots and all processes that descend from them.
func (s Snapshot) Tree(roots ...int) map[int]Proc {
	children := make(map[int][]int)
	for _, p := range s.Procs {
		children[p.Parent] = append(children[p.Parent], p.PID)
	}
	tree := make(map[int]Proc)
	for todo := roots; len(todo) > 0; {
		pid := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		p, ok := s.Procs[pid]
		if _, seen := tree[pid]; seen || !ok {
			continue
		}
		tree[pid] = p
		todo = append(todo[:len(todo):len(todo)], children[pid]...)
	}
	return tree
}

// Time returns the CPU time of the processes that descend from the roots, with
// that of their ended children.
func (s Snapshot) Time(roots ...int) (sum time.Duration) {
	for _, p := range s.Tree(roots...) {
		sum += p.Total()
	}
	return sum
}

// ParsePSS returns the proportional set size in bytes from /proc/PID/smaps_rollup:
// private memory and the share of the process in shared memory.
func ParsePSS(s string) (int64, error) {
	for line := range strings.Lines(s) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" && f[2] == "kB" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("bench: %w", err)
			}
			return n << 10, nil
		}
	}
	return 0, fmt.Errorf("bench: no Pss in %.100q", s)
}

// PSS adds up the proportional set size in bytes of the processes that descend
// from the roots.
func (s Snapshot) PSS(roots ...int) (sum int64, err error) {
	for pid := range s.Tree(roots...) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if ended(err) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("bench: %w", err)
		}
		n, err := ParsePSS(string(b))
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}
