// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bytes"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// processes lists the processes of the program, and perhaps others: those that descend from this
// one or, if root is set, those that have a filter and were made since root had its own. It is not
// safe for concurrent use.
type processes struct {
	root int    // the program, if it does not descend from this process
	made made   // for root
	last []byte // the last process id that had been given when all was filled
	all  []int
}

// lastPID tells the last number that a new task got in this PID namespace. The file does
// not exist without CONFIG_CHECKPOINT_RESTORE.
const lastPID = "/proc/sys/kernel/ns_last_pid"

// list returns the processes, and perhaps some that have ended. As long as no task is made
// in the PID namespace, there are no others than those of the last call.
func (p *processes) list() []int {
	last, err := os.ReadFile(lastPID)
	if p.root != 0 {
		p.all = p.made.list(p.root, last)
		return p.all
	}
	if err == nil && bytes.Equal(last, p.last) {
		return p.all
	}
	all, ok := descendants(os.Getpid())
	if !ok {
		all = descendantsByParent(os.Getpid())
	}
	p.last, p.all = last, all
	return all
}

// hides reports whether a process with a filter that does not show its descriptors is one of the
// program. Without privileges, no program changes its user.
func (p *processes) hides(pid int) bool {
	if p.root == 0 || os.Geteuid() == 0 {
		return true
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return false
	}
	uid, _, err := userIDs(b)
	return err == nil && uid == os.Getuid()
}

// listRounds limits how often descendants searches because a process has ended meanwhile.
const listRounds = 4

// descendants returns the processes that descend from root. Daemons are included, because
// the launcher is a subreaper. It asks the kernel for the children of each thread. ok is
// false if the kernel does not tell them (no CONFIG_PROC_CHILDREN).
func descendants(root int) (all []int, ok bool) {
	known := map[int]bool{}
	for range listRounds {
		vanished := false
		next := []int{root}
		seen := map[int]bool{root: true}
		for ; len(next) > 0; next = next[1:] {
			task := "/proc/" + strconv.Itoa(next[0]) + "/task/"
			threads := numbers(task)
			vanished = vanished || len(threads) == 0
			for _, tid := range threads {
				b, err := os.ReadFile(task + strconv.Itoa(tid) + "/children")
				if err != nil {
					if next[0] == root && tid == root {
						return nil, false
					}
					// A thread that has ended leaves its children to another one.
					vanished = true
					continue
				}
				for f := range bytes.FieldsSeq(b) {
					if pid, err := strconv.Atoi(string(f)); err == nil && !seen[pid] {
						seen[pid] = true
						next = append(next, pid)
					}
				}
			}
		}
		delete(seen, root)
		for pid := range seen {
			if !known[pid] {
				known[pid] = true
				all = append(all, pid)
			}
		}
		if !vanished {
			break
		}
	}
	return all, true
}

// descendantsByParent is descendants for every kernel. It reads the parents of all
// processes of the host.
func descendantsByParent(root int) []int {
	children := make(map[int][]int)
	for _, pid := range numbers("/proc") {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
		if err != nil {
			continue
		}
		if parent, err := statusInt(b, "PPid:"); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	var all []int
	for next := children[root]; len(next) > 0; next = next[1:] {
		all = append(all, next[0])
		next = append(next, children[next[0]]...)
	}
	return all
}

// numbers returns the entries of a directory whose names are numbers.
func numbers(dir string) []int {
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	return numbersIn(d)
}

func numbersIn(dir *os.File) []int {
	names, _ := dir.Readdirnames(-1)
	var nums []int
	for _, name := range names {
		if n, err := strconv.Atoi(name); err == nil {
			nums = append(nums, n)
		}
	}
	return nums
}

// threadsOf returns how many threads a process has, or 0 if it is not known.
func threadsOf(pid int) int {
	var st unix.Stat_t
	if err := unix.Stat("/proc/"+strconv.Itoa(pid)+"/task", &st); err != nil || st.Nlink < 3 {
		return 0
	}
	return int(st.Nlink) - 2 // each thread is a directory
}
