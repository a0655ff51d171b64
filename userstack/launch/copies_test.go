// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
)

// TestCopies: all descriptors of a socket show the same connection.
func TestCopies(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	addr := echoServer(t, "tcp4", "127.0.0.1:0", "")
	const (
		isSMC = iota
		isTCP // because it was duplicated
		isAny // a race decides
	)
	slow := &fakeStack{estDelay: 300 * ms}
	for _, tt := range []struct {
		kind  string
		stack *fakeStack
		want  int
	}{
		{"one", &fakeStack{}, isSMC},
		{"dup", &fakeStack{}, isTCP},
		{"dup, non-blocking", &fakeStack{}, isTCP},
		{"dup2", &fakeStack{}, isTCP},
		{"dup3", &fakeStack{}, isTCP},
		{"F_DUPFD", &fakeStack{}, isTCP},
		{"dup, closed", &fakeStack{}, isSMC},
		{"the copy connects", &fakeStack{}, isTCP},
		{"fork, the child connects", &fakeStack{}, isTCP},
		{"fork, the parent connects", &fakeStack{}, isTCP},
		{"fork, ended", &fakeStack{}, isSMC},
		{"fork, closed", &fakeStack{}, isSMC},
		{"grandchild", &fakeStack{}, isTCP},
		{"exec, inherited", &fakeStack{}, isTCP},
		{"exec, close-on-exec", &fakeStack{}, isSMC},
		{"SCM_RIGHTS", &fakeStack{}, isTCP},
		{"thread", &fakeStack{}, isSMC},
		{"CLONE_FILES", &fakeStack{}, isSMC},
		{"the thread's own table", &fakeStack{}, isTCP},
		{"during", slow, isAny},
		{"during", &fakeStack{estDelay: 15 * ms}, isAny},
		{"during, non-blocking", slow, isAny},
		{"fork during", slow, isAny},
		{"after", &fakeStack{estDelay: 40 * ms, clcDelay: 100 * ms}, isSMC},
		{"after", &fakeStack{estDelay: 40 * ms, decline: "no link", clcDelay: 100 * ms}, isAny},
		{"after", &fakeStack{estDelay: 40 * ms, noPeer: true}, isAny},
		{"dup", &fakeStack{noPeer: true}, isAny},
		{"dup", &fakeStack{decline: "no link"}, isAny},
	} {
		if testing.Short() && !slices.Contains([]string{"one", "dup", "fork, the child connects", "SCM_RIGHTS", "during"}, tt.kind) {
			continue
		}
		name := tt.kind
		if tt.stack.decline != "" || tt.stack.noPeer {
			name += ", TCP"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stack := tt.stack.fresh()
			if os.Geteuid() != 0 && tt.kind == "the thread's own table" {
				t.Skip("needs root") // Yama keeps the launcher from comparing the tables
			}
			res := launched(t, stack, "", nil, "python3", "testdata/copies.py", tt.kind, addr)
			if res.status != 0 {
				t.Fatalf("status %d\n%s", res.status, res.out)
			}
			smc, dup := res.stats.ByMode[broker.ModeSMCR], res.stats.TCP[ReasonDuplicated]
			if tt.want == isSMC && (smc != 1 || dup != 0) || tt.want == isTCP && (smc != 0 || dup != 1) {
				t.Errorf("%d over SMC, %d over TCP because they were duplicated: %+v", smc, dup, res.stats)
			}
		})
	}
}

// TestDescendants: both ways to find the processes of a program find the same ones, and a
// list that is still valid is used again.
func TestDescendants(t *testing.T) {
	testkind.System(t)
	c := exec.Command("sh", "-c", "sleep 60 & sleep 60 & wait")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Wait() }()
	var kids []int
	defer func() {
		for _, pid := range append(kids, c.Process.Pid) {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill()
			}
		}
	}()
	for deadline := time.Now().Add(patience); len(kids) != 2; time.Sleep(ms) {
		if time.Now().After(deadline) {
			t.Fatalf("children %v", kids)
		}
		kids = descendantsByParent(c.Process.Pid)
	}
	want := append(slices.Clone(kids), c.Process.Pid)
	all, ok := descendants(os.Getpid())
	if !ok {
		t.Log("the kernel does not tell the children of a thread")
	} else {
		got, _ := descendants(c.Process.Pid)
		if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(kids))) {
			t.Errorf("descendants %v, want %v", got, kids)
		}
	}
	var p processes
	for _, list := range [][]int{p.list(), p.list(), descendantsByParent(os.Getpid())} {
		for _, pid := range want {
			if !slices.Contains(list, pid) {
				t.Errorf("%d is not in %v", pid, list)
			}
		}
	}
	if ok && !slices.Contains(all, kids[0]) {
		t.Errorf("%d is not in %v", kids[0], all)
	}
	if b, err := os.ReadFile(lastPID); err == nil && strings.TrimSpace(string(b)) == "" {
		t.Errorf("%s is empty", lastPID)
	}
}

// TestTired: searches of many descriptors take a small share of the time.
func TestTired(t *testing.T) {
	x := &endIndex{looks: newLooks(t.Context())}
	n := &notif{}
	n.PID = uint32(os.Getpid())
	now := time.Now()
	for _, tt := range []struct {
		read  int
		ago   time.Duration
		tired bool
	}{
		{0, 0, false},
		{fewDescriptors, 0, false},
		{fewDescriptors + 1, 0, true},
		{10_000, time.Second - 1, true},
		{10_000, time.Second, false},
	} {
		x.read, x.ended = tt.read, now.Add(-tt.ago)
		if got := x.tired(now); got != tt.tired {
			t.Errorf("a search of %d that ended %v ago: tired %v", tt.read, tt.ago, got)
		}
	}
	x.read, x.ended = 1<<30, time.Now()
	if lone, err := x.copied(n, 1, nil); lone || err != nil || x.read != 1<<30 {
		t.Errorf("copied: %v, %v, it read %d", lone, err, x.read)
	}
	if _, err := x.unique(n, 1, nil); err != nil || x.read == 1<<30 {
		t.Errorf("unique: %v, it read %d", err, x.read)
	}
}
