// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A launcher beside its program is no ancestor of it, and no process tells which processes
// descended from the program: the parent of a daemon has ended. But each of them has the filter,
// and was made after the program got it. So made looks at the processes whose numbers were given
// since then, once at each. They include processes with filters of others, such as those of
// containers that were started meanwhile. For these the launcher does more than it has to: it
// looks at their descriptors, among which no socket of the program is.
type made struct {
	own   int // the filters of this process, plus one; 0: not known yet
	from  int // the last process id that was given when all was filled; 0: read all processes
	all   []int
	fresh map[int]time.Time // numbers of no process, perhaps not yet
}

const (
	// freshTime is how long a number may have been given to a process that is still being made.
	freshTime = 5 * time.Second
	// manyMade is how many numbers are looked at before all processes are listed instead.
	manyMade = 4096
)

// list returns the processes. last is the text of lastPID, or empty if it cannot be read.
func (m *made) list(root int, last []byte) []int {
	if m.own == 0 {
		m.own = filters(os.Getpid()) + 1
		m.all, m.fresh = []int{root}, map[int]time.Time{}
	}
	now, err := strconv.Atoi(string(bytes.TrimSpace(last)))
	switch {
	case err != nil || m.from == 0 || now < m.from || now-m.from > manyMade:
		m.all = slices.DeleteFunc(numbers("/proc"), func(pid int) bool { return filters(pid) < m.own })
		clear(m.fresh)
	default:
		for pid := range m.fresh {
			m.look(pid)
		}
		for pid := m.from + 1; pid <= now; pid++ {
			m.fresh[pid] = time.Now()
			m.look(pid)
		}
		if now != m.from {
			m.all = slices.DeleteFunc(m.all, func(pid int) bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) })
		}
	}
	m.from = now
	return m.all
}

// look adds a number if it is that of a process with the filter.
func (m *made) look(pid int) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		if time.Since(m.fresh[pid]) > freshTime {
			delete(m.fresh, pid)
		}
		return
	}
	delete(m.fresh, pid)
	if tgid, err := statusInt(b, "Tgid:"); err != nil || tgid != pid {
		return // a thread
	}
	if filtersIn(b) >= m.own && !slices.Contains(m.all, pid) {
		m.all = append(m.all, pid)
	}
}

// lastPIDNow returns the last process id that was given, or 0 if it is not known.
func lastPIDNow() int {
	b, _ := os.ReadFile(lastPID)
	n, _ := strconv.Atoi(string(bytes.TrimSpace(b)))
	return n
}
