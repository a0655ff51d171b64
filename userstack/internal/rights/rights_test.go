// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
)

const (
	rawRight   = Rights(1 << unix.CAP_NET_RAW)
	adminRight = Rights(1 << unix.CAP_NET_ADMIN)
)

// The main goroutine keeps the main thread, because /proc shows this thread as the
// process. Tests leave other threads with changed rights.
var _ = func() bool { runtime.LockOSThread(); return true }()

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 || Of("self")&(rawRight|adminRight) != rawRight|adminRight {
		t.Skip("needs root, with CAP_NET_RAW and CAP_NET_ADMIN, to give them up")
	}
}

func effective(t *testing.T, task string) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/task/" + task + "/status")
	if err != nil {
		return "" // it has ended
	}
	_, rest, _ := strings.Cut(string(b), "CapEff:")
	line, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(line)
}

// TestRightsDo: the kernel uses the given rights, and afterwards every thread has its
// earlier rights.
func TestRightsDo(t *testing.T) {
	needRoot(t)
	before := effective(t, strconv.Itoa(os.Getpid()))
	mark := func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 1) }
	repair := func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1) }
	var wg sync.WaitGroup
	for _, tt := range []struct {
		r            Rights
		mark, repair error
	}{
		{0, unix.EPERM, unix.EPERM},
		{rawRight, nil, unix.EPERM},
		{adminRight, nil, nil},
		{^(rawRight | adminRight), unix.EPERM, unix.EPERM},
		{All, nil, nil},
	} {
		fd := socktest.TCP(t)
		wg.Go(func() {
			for range 50 {
				if err := tt.r.Do(func() error { return mark(fd) }); !errors.Is(err, tt.mark) {
					t.Errorf("rights %#x: SO_MARK: %v, want %v", uint64(tt.r), err, tt.mark)
				}
				if err := tt.r.Do(func() error { return repair(fd) }); !errors.Is(err, tt.repair) {
					t.Errorf("rights %#x: TCP_REPAIR: %v, want %v", uint64(tt.r), err, tt.repair)
				}
			}
		})
	}
	wg.Wait()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range tasks {
		if got := effective(t, e.Name()); got != before && got != "" {
			t.Errorf("thread %s has %s, had %s", e.Name(), got, before)
		}
	}
}

// TestRightsNeverMore: Do cannot give rights that the caller does not have.
func TestRightsNeverMore(t *testing.T) {
	needRoot(t)
	fd := socktest.TCP(t)
	err := Rights(0).Do(func() error { // on a new thread
		err, restored := All.do(func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, 1) })
		if !restored {
			t.Error("not restored")
		}
		return err
	})
	if !errors.Is(err, unix.EPERM) {
		t.Errorf("SO_MARK: %v, want EPERM", err)
	}
}

// TestRightsThreadEnds: a thread that does not get its capabilities back is not used
// again.
func TestRightsThreadEnds(t *testing.T) {
	testkind.System(t)
	needRoot(t)
	tid := 0
	if err := Rights(0).Do(func() error {
		tid = unix.Gettid()
		h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		return unix.Capset(&h, &none[0])
	}); err != nil {
		t.Fatal(err)
	}
	testkind.Eventually(t, fmt.Sprintf("thread %d lives", tid), func() (any, bool) {
		got := effective(t, strconv.Itoa(tid))
		return got, got == ""
	})
}

// TestRightsOf checks the rights of threads and processes.
func TestRightsOf(t *testing.T) {
	testkind.System(t)
	needRoot(t)
	if got := Of("0"); got != 0 {
		t.Errorf("of no task: %#x", uint64(got))
	}
	for _, r := range []Rights{0, rawRight, rawRight | adminRight} {
		if err := r.Do(func() error {
			if got := Of(strconv.Itoa(unix.Gettid())); got != r {
				t.Errorf("of a thread: %#x, want %#x", uint64(got), uint64(r))
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	// This process has all capabilities, but in another user namespace.
	cmd := exec.CommandContext(t.Context(), "unshare", "--user", "--map-root-user", "sh", "-c", "grep CapEff /proc/self/status; read x")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	n, err := out.Read(b)
	if err != nil || strings.Contains(string(b[:n]), "0000000000000000") {
		t.Fatalf("%q, %v", b[:n], err)
	}
	if got := Of(strconv.Itoa(cmd.Process.Pid)); got != 0 {
		t.Errorf("of another user namespace: %#x", uint64(got))
	}
	_ = in.Close()
	_ = cmd.Wait()
}
