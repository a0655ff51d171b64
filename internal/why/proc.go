// SPDX-License-Identifier: Apache-2.0

package why

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"smcr/internal/cgroup"
	"smcr/internal/containers"
	"smcr/internal/ours"
	"smcr/nl"
)

// procs reads processes from procfs, each once.
type procs struct {
	root string // mount point of procfs

	known     map[int]*task
	described map[int]*Process
	attached  []nl.Attachment
}

func newProcs() *procs {
	return &procs{root: "/proc", known: map[int]*task{}, described: map[int]*Process{}}
}

// task is what procfs says about a process.
type task struct {
	pid, parent int
	uid         uint32
	kernel      bool // a kernel thread
	comm        string
	argv        []string
	cgroups     string
	tgid        int
}

// kernelThread is PF_KTHREAD of linux/sched.h.
const kernelThread = 0x00200000

func (p *procs) read(pid int, name string) string {
	b, _ := os.ReadFile(filepath.Join(p.root, strconv.Itoa(pid), name))
	return string(b)
}

// task returns a process, or nil if there is none. The number of a thread is not one of a process.
func (p *procs) task(pid int) *task {
	if t, ok := p.known[pid]; ok {
		return t
	}
	t := p.readTask(pid)
	p.known[pid] = t
	return t
}

func (p *procs) readTask(pid int) *task {
	t := &task{pid: pid}
	stat := p.read(pid, "stat")
	// The name is in parentheses and may have some itself.
	head, rest, ok := cutLast(stat, ')')
	fields := strings.Fields(rest)
	if !ok || len(fields) < 7 {
		return nil
	}
	_, t.comm, _ = strings.Cut(head, "(")
	t.parent, _ = strconv.Atoi(fields[1])
	flags, _ := strconv.ParseUint(fields[6], 10, 64)
	t.kernel = flags&kernelThread != 0
	for line := range strings.Lines(p.read(pid, "status")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		words := strings.Fields(value)
		if len(words) == 0 {
			continue
		}
		n, _ := strconv.ParseUint(words[0], 10, 32)
		switch name {
		case "Tgid":
			t.tgid = int(n)
		case "Uid":
			t.uid = uint32(n)
		}
	}
	t.argv = strings.Split(strings.TrimSuffix(p.read(pid, "cmdline"), "\x00"), "\x00")
	t.cgroups = p.read(pid, "cgroup")
	return t
}

func cutLast(s string, sep byte) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// pids returns all processes that are visible.
func (p *procs) pids() (pids []int) {
	entries, _ := os.ReadDir(p.root)
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// program returns the process with a number that may have sockets: no kernel thread, and for a
// thread its process.
func (p *procs) program(pid int) *task {
	t := p.task(pid)
	if t == nil || t.kernel {
		return nil
	}
	if t.tgid != 0 && t.tgid != pid {
		return p.program(t.tgid)
	}
	return t
}

// inodes returns the sockets of a process.
func (p *procs) inodes(pid int) ([]uint64, error) {
	dir := filepath.Join(p.root, strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []uint64
	for _, e := range entries {
		name, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			continue // it was closed meanwhile
		}
		if n, ok := strings.CutPrefix(name, "socket:["); ok {
			if i, err := strconv.ParseUint(strings.TrimSuffix(n, "]"), 10, 64); err == nil {
				all = append(all, i)
			}
		}
	}
	return all, nil
}

// holders returns the processes that have the sockets, as far as the user may see them.
func (p *procs) holders(wanted map[uint64]bool) map[uint64][]int {
	found := map[uint64][]int{}
	if len(wanted) == 0 {
		return found
	}
	for _, pid := range p.pids() {
		all, _ := p.inodes(pid)
		for _, i := range all {
			if wanted[i] && !slices.Contains(found[i], pid) {
				found[i] = append(found[i], pid)
			}
		}
	}
	return found
}

// elsewhere reports whether a process is in another network namespace. It is false if the user
// may not know.
func (p *procs) elsewhere(pid int) bool {
	var own, other unix.Stat_t
	if unix.Stat(filepath.Join(p.root, "thread-self/ns/net"), &own) != nil ||
		unix.Stat(filepath.Join(p.root, strconv.Itoa(pid), "ns/net"), &other) != nil {
		return false
	}
	return own.Ino != other.Ino || own.Dev != other.Dev
}

// process describes a process, or returns nil if there is none.
func (p *procs) process(pid int) *Process {
	if x := p.described[pid]; x != nil {
		return x
	}
	t := p.task(pid)
	if t == nil {
		return nil
	}
	does, run := p.attachedBy(t)
	x := &Process{PID: pid, UID: t.uid, Command: t.comm, Start: startOf(t), Attached: does, Run: run, Unit: unitOf(t.cgroups, p.read(1, "cgroup")), Part: ours.Process(t.comm, t.argv)}
	_, x.Container = containers.Of(systemdCgroups(t.cgroups)[1])
	p.described[pid] = x
	return x
}

// attachedBy reports whether the cgroup of a process is attached, or below one that is, and whether that is one of smcr run.
// The innermost one counts. That of a run counts without a stack, too.
func (p *procs) attachedBy(t *task) (does, run bool) {
	in := systemdCgroups(t.cgroups)[1]
	best := -1
	run = strings.Contains(in, "/"+cgroup.RunPrefix)
	does = run
	for _, a := range p.attached {
		if top := strings.TrimSuffix(a.Path, "/"); below(in, top) && len(top) > best {
			best, does, run = len(top), a.Connect || a.Accept, a.Run
		}
	}
	return does, does && run
}

// below reports whether a cgroup, which may be unknown, is another one, or below it.
func below(in, top string) bool {
	rest, ok := strings.CutPrefix(in, strings.TrimSuffix(top, "/"))
	return in != "" && ok && (rest == "" || rest[0] == '/')
}

// simple is a word that needs no quotes in a shell.
var simple = regexp.MustCompile(`^[A-Za-z0-9_@%+=:,./-]+$`)

// startOf returns the command of a process, without its arguments: they may be many.
func startOf(t *task) string {
	name := t.comm
	if len(t.argv) > 0 && simple.MatchString(t.argv[0]) && !strings.HasSuffix(t.argv[0], ":") {
		name = strings.TrimPrefix(t.argv[0], "-") // a login shell
	}
	if !simple.MatchString(name) {
		return "PROGRAM"
	}
	if len(t.argv) > 1 {
		name += " ..."
	}
	return name
}

// systemdCgroups returns the cgroups into which systemd may have put a process: in the tree of
// version 1, and in that of version 2.
func systemdCgroups(cgroups string) (paths [2]string) {
	for line := range strings.Lines(cgroups) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(parts) < 3:
		case parts[1] == "name=systemd":
			paths[0] = parts[2]
		case parts[0] == "0":
			paths[1] = parts[2]
		}
	}
	return paths
}

// notVisible returns the error of a process whose sockets the user may not see.
func notVisible(err error) bool { return errors.Is(err, fs.ErrPermission) }

// name returns the name of a process for messages.
func (t *task) name() string { return fmt.Sprintf("process %d (%s)", t.pid, t.comm) }
