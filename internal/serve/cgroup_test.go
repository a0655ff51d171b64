// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/cgroup"
	"smcr/internal/testing/testkind"
)

// startEnv makes the test binary a program that starts a service on demand.
const startEnv = "SMCR_SERVE_TEST_START"

// writableCgroups returns the top of the cgroup v2 tree. It skips the test if the tree
// cannot be written to.
func writableCgroups(t *testing.T) string {
	t.Helper()
	top, err := cgroup.Top()
	if err != nil {
		t.Skip(err)
	}
	dir := filepath.Join(top, fmt.Sprintf("smcr-test-%d-try", os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip("the cgroup v2 tree is not for this process to write: ", err)
	}
	if err := os.Remove(dir); err != nil {
		t.Error(err)
	}
	return top
}

// TestCgroup: a service that was started on demand survives when the cgroup of its
// starter is killed.
func TestCgroup(t *testing.T) {
	inNamespace(t, func(t *testing.T, log string) {
		top := writableCgroups(t)
		program := filepath.Join(top, fmt.Sprintf("smcr-test-%d", os.Getpid()))
		if err := os.Mkdir(program, 0o755); err != nil {
			t.Error(err)
			return
		}
		defer os.Remove(program)
		defer os.Remove(filepath.Join(top, cgroupName)) // fails if other processes are in it
		f, err := os.Open(program)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), startEnv+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(f.Fd())}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("the starter: %v\n%s", err, out)
			return
		}
		pid := servicePID(t)
		if pid <= 0 {
			t.Error("nobody serves")
			return
		}
		defer func() {
			_ = unix.Kill(pid, unix.SIGTERM)
			wantEnd(t, pid)
		}()
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil || !strings.Contains("\n"+string(b), "\n0::/"+cgroupName+"\n") {
			t.Errorf("the service is in %q, %v", b, err)
		}
		if b, err := os.ReadFile(filepath.Join(program, "cgroup.procs")); err != nil || len(b) > 0 {
			t.Errorf("in the starter's cgroup there are %q, %v", b, err)
		}
		if err := os.WriteFile(filepath.Join(program, "cgroup.kill"), []byte("1"), 0); err != nil {
			t.Error(err)
		}
		if got := servicePID(t); got != pid {
			t.Errorf("after the end of the cgroup process %d serves, not %d", got, pid)
		}
		if b, err := os.ReadFile(log); err != nil || strings.Contains(string(b), staysMessage) {
			t.Errorf("log: %s, %v", b, err)
		}
	})
}

// TestStaysInCgroup: a service that cannot have a cgroup of its own starts nevertheless,
// and its log reports this once.
func TestStaysInCgroup(t *testing.T) {
	testkind.System(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	name := filepath.Join(t.TempDir(), "log")
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked, so that the thread ends with the goroutine
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), 65534, ^uintptr(0)); e != 0 {
			t.Error(e)
			return
		}
		cmd, err := startOwnCgroup(func() *exec.Cmd {
			cmd := exec.Command("/bin/sh", "-c", "echo started >&2")
			cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{}
			return cmd
		}, f)
		if err == nil {
			err = cmd.Wait()
		}
		if err != nil {
			t.Error(err)
		}
	}()
	<-done
	b, err := os.ReadFile(name)
	text := string(b)
	if err != nil || strings.Count(text, staysMessage) != 1 || !strings.Contains(text, "level=INFO") || !strings.HasSuffix(text, "needs root\"\nstarted\n") {
		t.Errorf("log: %q, %v", text, err)
	}
}
