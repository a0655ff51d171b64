// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

func TestPairCarriesTCP(t *testing.T) {
	testkind.System(t)
	p := New(t, Options{MTU: 9000, Links: 2})
	if got := len(p.A.Links); got != 2 {
		t.Fatalf("host A has %d links, want 2", got)
	}
	for _, addr := range []string{p.A.Addr(), p.A.Addr6(), p.A.Links[1].IPv4.String(), p.A.Links[1].IPv6.String()} {
		t.Run(addr, func(t *testing.T) {
			var ln net.Listener
			err := p.A.Do(func() (err error) {
				ln, err = net.Listen("tcp", net.JoinHostPort(addr, "0"))
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			got := make(chan string, 1)
			go func() {
				c, err := ln.Accept()
				if err != nil {
					got <- err.Error()
					return
				}
				defer c.Close()
				b, _ := io.ReadAll(c)
				got <- string(b)
			}()
			err = p.B.Do(func() error {
				// This works at once: the addresses are never tentative.
				c, err := net.DialTimeout("tcp", ln.Addr().String(), testkind.Patience)
				if err != nil {
					return err
				}
				defer c.Close()
				_, err = c.Write([]byte("across"))
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if s := <-got; s != "across" {
				t.Errorf("received %q", s)
			}
		})
	}
	err := p.A.Do(func() error {
		ifi, err := net.InterfaceByName("eth1")
		if err != nil {
			return err
		}
		if ifi.MTU != 9000 || ifi.HardwareAddr.String() != p.A.Links[1].MAC.String() {
			return fmt.Errorf("eth1 has MTU %d and address %v, want 9000 and %v", ifi.MTU, ifi.HardwareAddr, p.A.Links[1].MAC)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := net.InterfaceByName(p.A.Name); err == nil {
		t.Error("a device leaked into our namespace")
	}
}

func TestCommandRunsInside(t *testing.T) {
	p := New(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), testkind.Patience)
	defer cancel()
	out, err := p.B.Output(ctx, "ip", "-o", "-4", "addr", "show", "eth0")
	if err != nil || !strings.Contains(out, p.B.Addr()+"/24") {
		t.Errorf("ip addr in B: %v, %q", err, out)
	}
	if _, err := p.B.Output(ctx, "sh", "-c", "echo why >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "why") {
		t.Errorf("error %v lacks standard error", err)
	} else if ee, ok := errors.AsType[*exec.ExitError](err); !ok || ee.ExitCode() != 3 {
		t.Errorf("error %v, want exit status 3", err)
	}
	if err := p.B.Do(func() error { return os.ErrInvalid }); !errors.Is(err, os.ErrInvalid) {
		t.Errorf("Do returned %v", err)
	}
}

func TestCloseEndsEveryProcess(t *testing.T) {
	testkind.System(t)
	Require(t, "nsenter", "setsid")
	p, err := Create(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	// A grandchild in a separate session is not in the process group.
	pr, err := p.A.Start(p.A.Command(t.Context(), "sh", "-c", "setsid sleep 1000 & sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	err = Until(testkind.Patience, func() (err error) {
		if pids, err = p.A.Pids(); err == nil && len(pids) < 3 {
			err = fmt.Errorf("processes %v", pids)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-pr.Done():
	case <-time.After(testkind.Patience):
		t.Error("the process still runs")
	}
	for _, pid := range pids {
		if running(pid) {
			t.Errorf("process %d survived Close", pid)
		}
	}
	if _, err := os.Stat(p.A.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("namespace file: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

// running reports whether the process exists and is not a zombie.
func running(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(after, "Z")
}

func TestRemoveStale(t *testing.T) {
	testkind.System(t)
	Require(t, "nsenter")
	// The ID of a process that has ended: a child that was reaped.
	child := exec.Command("true")
	if err := child.Run(); err != nil {
		t.Fatal(err)
	}
	h := newHost(fmt.Sprintf("%s%d-1-a", prefix, child.Process.Pid))
	if err := h.create(); err != nil {
		t.Fatal(err)
	}
	defer h.close()
	live := New(t, Options{})
	if err := RemoveStale(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(h.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stale namespace: %v, want it removed", err)
	}
	if _, err := os.Stat(live.A.Path()); err != nil {
		t.Errorf("namespace of a live process: %v", err)
	}
}

func TestOwner(t *testing.T) {
	for name, want := range map[string]int{
		"smcr-12-1-a": 12, "smcr-12-1": 0, "smcr-x-1-a": 0, "other": 0, "smcr--1-a": 0, "smcr-0-1-a": 0, "cni-12-1-a": 0,
	} {
		pid, ok := owner(name)
		if ok != (want != 0) || (ok && pid != want) {
			t.Errorf("owner(%q) = %d, %v", name, pid, ok)
		}
	}
}

func TestWaits(t *testing.T) {
	testkind.System(t)
	p := New(t, Options{})
	pr := p.A.Go(t, "sh", "-c", "printf ready; sleep 0.3; echo ' now'; exec sleep 1000")
	if err := pr.WaitPart("ready", testkind.Patience); err != nil {
		t.Error(err)
	}
	if err := pr.WaitOutput("ready", testkind.Patience); err != nil || pr.Log() != "ready now\n" {
		t.Errorf("WaitOutput = %v, after %q", err, pr.Log())
	}
	if err := pr.Wait(10 * time.Millisecond); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Wait = %v", err)
	}
	if err := pr.Signal(unix.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := pr.Wait(testkind.Patience); !endedBy(err, unix.SIGTERM) {
		t.Errorf("Wait after SIGTERM = %v", err)
	}
	if err := p.A.Go(t, "true").WaitOutput("never", testkind.Patience); err == nil || !strings.Contains(err.Error(), "ended") {
		t.Errorf("WaitOutput of an ended program = %v", err)
	}
	if err := p.A.WaitListen(80, 20*time.Millisecond); err == nil {
		t.Error("WaitListen found a server where none is")
	}
	var ln net.Listener
	if err := p.A.Do(func() (err error) { ln, err = net.Listen("tcp", ":80"); return err }); err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := p.A.WaitListen(80, testkind.Patience); err != nil {
		t.Error(err)
	}
}

func TestSetLink(t *testing.T) {
	p := New(t, Options{})
	flags := func() (f net.Flags) {
		if err := p.A.Do(func() error {
			ifi, err := net.InterfaceByName("eth0")
			if err == nil {
				f = ifi.Flags
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return f
	}
	for _, up := range []bool{false, true} {
		if err := p.A.SetLink(0, up); err != nil {
			t.Fatal(err)
		}
		if got := flags()&net.FlagUp != 0; got != up {
			t.Errorf("up = %v, want %v", got, up)
		}
	}
}

func TestRequireFailsUnderCI(t *testing.T) {
	testkind.System(t)
	// Under CI, a test that lacks something must fail and not be skipped. So run such a
	// test in a child of this test binary.
	if os.Getenv("NETNSTEST_CHILD") != "" {
		Require(t, "no-such-program")
		return
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for ci, want := range map[string]string{"": "--- SKIP", "true": "--- FAIL"} {
		cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestRequireFailsUnderCI$", "-test.v")
		cmd.Env = append(os.Environ(), "NETNSTEST_CHILD=1", "CI="+ci)
		cmd.Dir = filepath.Dir(exe)
		out, err := cmd.CombinedOutput()
		if !strings.Contains(string(out), want) || (err != nil) != (ci != "") {
			t.Errorf("CI=%q: %v, want %s in\n%s", ci, err, want, out)
		}
	}
}

// endedBy reports whether an error means that a signal has ended a program.
func endedBy(err error, sig syscall.Signal) bool {
	e, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return false
	}
	ws, ok := e.Sys().(syscall.WaitStatus)
	return ok && ws.Signaled() && ws.Signal() == sig
}
