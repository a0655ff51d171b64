// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// children are the programs for which calls of Run wait. This is a package
// variable because children belong to the whole process: a Run must not reap a
// child for which another Run waits.
var children childSet

type childSet struct {
	mu   sync.Mutex
	pids map[int]struct{}
}

// start starts the executable of this process with argv and adds the child to
// the set.
func (s *childSet) start(argv []string, attr *syscall.ProcAttr) (pid int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pid, _, err = syscall.StartProcess(self, argv, attr)
	if err != nil {
		return 0, err
	}
	if s.pids == nil {
		s.pids = make(map[int]struct{})
	}
	s.pids[pid] = struct{}{}
	return pid, nil
}

func (s *childSet) remove(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pids, pid)
}

// reapOrphans reaps, until done is closed, the descendants that became children
// of this process when their parents ended. The process is a subreaper.
func reapOrphans(done <-chan struct{}) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, unix.SIGCHLD)
	defer signal.Stop(ch)
	own := filters(os.Getpid())
	for {
		for children.reapOne(own) {
		}
		select {
		case <-ch:
		case <-done:
			for children.reapOne(own) {
			}
			return
		}
	}
}

// reapOne reaps one orphan and reports whether there was one. Other children of
// this process are left alone: they do not have the seccomp filter.
func (s *childSet) reapOne(own int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var info unix.Siginfo
	err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	pid := siginfoPID(&info)
	if _, known := s.pids[pid]; err != nil || pid <= 0 || known || filters(pid) <= own {
		return false
	}
	got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
	return err == nil && got == pid
}

// filters counts the seccomp filters of a process; before Linux 5.9 it can
// only report whether there are any.
func filters(pid int) int {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0
	}
	return filtersIn(b)
}

// filtersIn is filters for the text of /proc/PID/status.
func filtersIn(status []byte) int {
	if n, err := statusInt(status, "Seccomp_filters:"); err == nil {
		return n
	}
	mode, _ := statusInt(status, "Seccomp:")
	return mode
}
