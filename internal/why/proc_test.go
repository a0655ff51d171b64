// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"smcr/nl"
)

// A fakeTask is a process of a procfs in a directory.
type fakeTask struct {
	pid, parent, uid      int
	comm, cmdline, cgroup string
	kernel                bool
	tgid                  int // 0: pid
	sockets               []int
}

// fakeProcs returns processes from a directory.
func fakeProcs(t *testing.T, tasks ...fakeTask) *procs {
	t.Helper()
	root := t.TempDir()
	for _, k := range tasks {
		dir := filepath.Join(root, strconv.Itoa(k.pid))
		flags := 0
		if k.kernel {
			flags = kernelThread
		}
		if k.tgid == 0 {
			k.tgid = k.pid
		}
		files := map[string]string{
			"stat":    fmt.Sprintf("%d (%s) S %d 0 0 0 0 %d 0 0 0", k.pid, k.comm, k.parent, flags),
			"status":  fmt.Sprintf("Name:\t%s\nTgid:\t%d\nUid:\t%d\t0\t0\t0\n", k.comm, k.tgid, k.uid),
			"cmdline": strings.ReplaceAll(k.cmdline, " ", "\x00") + "\x00", "cgroup": k.cgroup,
		}
		if err := os.MkdirAll(filepath.Join(dir, "fd"), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for fd, inode := range k.sockets {
			if err := os.Symlink(fmt.Sprintf("socket:[%d]", inode), filepath.Join(dir, "fd", strconv.Itoa(fd))); err != nil {
				t.Fatal(err)
			}
		}
	}
	return &procs{root: root, known: map[int]*task{}, described: map[int]*Process{}}
}

// TestAttached: of the attached cgroups around that of a process, the innermost one counts.
func TestAttached(t *testing.T) {
	p := &procs{attached: []nl.Attachment{
		{Path: "/system.slice/a.service", Connect: true}, {Path: "/user.slice", Accept: true}, {Path: "/user.slice/none"},
	}}
	for in, want := range map[string]bool{
		"/system.slice/a.service": true, "/system.slice/a.service/below": true, "/system.slice/a.services": false, "/system.slice": false,
		"/user.slice/x": true, "/user.slice/none/x": false, "/": false,
	} {
		if got, run := p.attachedBy(&task{cgroups: "1:name=systemd:/user.slice\n0::" + in + "\n"}); got != want || run {
			t.Errorf("%s: %t, %t, want %t", in, got, run, want)
		}
	}
	p.attached = nil
	for in, want := range map[string]bool{"/x/smcr-run-1-a": true, "/x/smcr-run-1-a/below": true, "/x": false} {
		if got, run := p.attachedBy(&task{cgroups: "0::" + in + "\n"}); got != want || run != want {
			t.Errorf("without a stack, %s: %t, %t, want %t", in, got, run, want)
		}
	}
	p.attached = []nl.Attachment{{Path: "/", Connect: true}, {Path: "/x/smcr-run-1-a", Connect: true, Run: true}}
	for in, want := range map[string]bool{"/user.slice": false, "/": false, "/x/smcr-run-1-a": true} {
		if does, run := p.attachedBy(&task{cgroups: "0::" + in + "\n"}); !does || run != want {
			t.Errorf("the topmost cgroup is that of all processes, %s: %t, %t", in, does, run)
		}
	}
}

func TestProcess(t *testing.T) {
	p := fakeProcs(t,
		fakeTask{pid: 10, uid: 5, comm: "x) (y", cmdline: "/usr/sbin/x -d", cgroup: "1:name=systemd:/system.slice/on.service/below\n", sockets: []int{4, 5}},
		fakeTask{pid: 11, comm: "nginx", cmdline: "nginx: worker process", cgroup: "0::/user.slice/user-1.slice/user@1.service/app.slice/y.service\n", sockets: []int{5}},
		fakeTask{pid: 12, comm: "bash", cmdline: "-bash"},
		fakeTask{pid: 13, comm: "a b", cmdline: "a$b"},
		fakeTask{pid: 14, comm: "kworker", kernel: true},
		fakeTask{pid: 15, tgid: 10, comm: "thread"},
	)
	for pid, want := range map[int]*Process{
		10: {PID: 10, UID: 5, Command: "x) (y", Start: "/usr/sbin/x ...", Unit: "on.service"},
		11: {PID: 11, Command: "nginx", Start: "nginx ..."},
		12: {PID: 12, Command: "bash", Start: "bash"},
		13: {PID: 13, Command: "a b", Start: "PROGRAM"},
		99: nil,
	} {
		if diff := cmp.Diff(want, p.process(pid)); diff != "" {
			t.Errorf("process %d (-want +got):\n%s", pid, diff)
		}
	}
	if x := p.program(15); x == nil || x.pid != 10 {
		t.Errorf("a thread: %+v", x)
	}
	if p.program(14) != nil || p.program(99) != nil {
		t.Error("a kernel thread, or nothing, is a program")
	}
	if diff := cmp.Diff(map[uint64][]int{4: {10}, 5: {10, 11}}, p.holders(map[uint64]bool{4: true, 5: true, 6: true})); diff != "" {
		t.Errorf("holders (-want +got):\n%s", diff)
	}
}

// TestOwn asks the real procfs about this process.
func TestOwn(t *testing.T) {
	p := newProcs()
	x := p.process(os.Getpid())
	if x == nil || x.PID != os.Getpid() || x.UID != uint32(os.Geteuid()) || x.Command == "" || p.elsewhere(os.Getpid()) {
		t.Errorf("%+v", x)
	}
}

func TestUnitOf(t *testing.T) {
	for cgroups, want := range map[string]string{
		"0::/system.slice/nginx.service\n":                                       "nginx.service",
		"0::/system.slice/system-getty.slice/getty@tty1.service\n":               "getty@tty1.service",
		"0::/own.slice/a\\x2db.service/below/it\n":                               `a\x2db.service`,
		"5:memory:/x\n1:name=systemd:/system.slice/ssh.service\n":                "ssh.service",
		"0::/user.slice/user-1000.slice/session-1.scope\n":                       "",
		"0::/user.slice/user-1000.slice/user@1000.service/app.slice/a.service\n": "",
		"0::/docker/0123/system.slice/nginx.service\n":                           "",
		"0::/system.slice/docker-0123.scope\n":                                   "",
		"0::/system.slice/$(x).service\n":                                        "",
		"5:memory:/system.slice/nginx.service\n":                                 "",
		"0::/\n":                                                                 "",
		"":                                                                       "",
	} {
		if got := unitOf(cgroups, "0::/init.scope\n"); got != want {
			t.Errorf("%q: %q, want %q", cgroups, got, want)
		}
	}
	// systemd in a container that is seen from outside of its cgroup namespace, and no systemd.
	if got := unitOf("0::/docker/12/system.slice/a.service\n", "0::/docker/12/init.scope\n"); got != "a.service" {
		t.Errorf("within a container: %q", got)
	}
	if got := unitOf("0::/system.slice/a.service\n", "0::/\n"); got != "a.service" {
		t.Errorf("process 1 in the top cgroup: %q", got)
	}
	if got := unitOf("1:name=systemd:/system.slice/a.service\n0::/\n", "1:name=systemd:/init.scope\n0::/init.scope\n"); got != "a.service" {
		t.Errorf("both versions of cgroups: %q", got)
	}
	if got := unitOf("1:name=systemd:/\n0::/x/system.slice/a.service\n", "1:name=systemd:/\n0::/x/init.scope\n"); got != "a.service" {
		t.Errorf("version 2 beside version 1: %q", got)
	}
}
