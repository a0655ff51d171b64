// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// serviceUser is a user as whom the stack runs, and thirdUser one without any part in it.
const (
	serviceUser = "65531"
	thirdUser   = "65532"
)

// unitCaps are the capabilities that the systemd unit grants.
func unitCaps(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile("../../../deploy/systemd/smcr.service")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^AmbientCapabilities=(.*)$`).FindSubmatch(b)
	if m == nil {
		t.Fatal("the unit grants no capabilities")
	}
	return strings.Fields(string(m[1]))
}

// confined returns a command line that runs argv as serviceUser with these capabilities, as
// the systemd unit does.
func confined(caps []string, argv ...string) []string {
	set := "-all"
	for _, c := range caps {
		set += ",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_"))
	}
	return append([]string{"setpriv", "--reuid=" + serviceUser, "--regid=" + serviceUser, "--clear-groups",
		"--bounding-set=" + set, "--inh-caps=" + set, "--ambient-caps=" + set, "--no-new-privs"}, argv...)
}

// serveConfined starts the stack of a host as serviceUser. It returns when the stack
// answers.
func (l *lab) serveConfined(h *netnstest.Host, caps []string, args ...string) *netnstest.Process {
	l.t.Helper()
	l.smcr(h, "serve", "--prepare", serviceUser)
	argv := confined(caps, append([]string{bin("smcr"), "serve"}, args...)...)
	p := h.Go(l.t, argv[0], argv[1:]...)
	if err := p.WaitOutput("msg=serving", startTime); err != nil {
		l.t.Fatal(err)
	}
	return p
}

// status returns a field of /proc/PID/status.
func status(t *testing.T, p *netnstest.Process, field string) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(b), "\n"+field+":")
	if !ok {
		t.Fatalf("no %s in\n%s", field, b)
	}
	value, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(value)
}

// TestServeConfined checks what a stack that root starts keeps: three capabilities, and the
// system calls of its list.
func TestServeConfined(t *testing.T) {
	l := newLab(t)
	stack := l.serve(l.A)
	const caps = "0000008000003000" // CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF
	want := map[string]string{"CapEff": caps, "CapPrm": caps, "CapBnd": caps, "CapInh": "0000000000000000", "CapAmb": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2"}
	if raceDetector {
		want = map[string]string{"NoNewPrivs": "1", "Seccomp": "2"} // cgo: see package confine
	}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", stack.Pid()))
	if err != nil || len(tasks) < 3 {
		t.Fatalf("%d threads, %v", len(tasks), err)
	}
	for _, name := range tasks {
		b, err := os.ReadFile(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		for field, value := range want {
			if line := field + ":\t" + value + "\n"; !strings.Contains(string(b), line) {
				t.Errorf("%s has no %q:\n%s", name, line, b)
			}
		}
	}
	terminate(t, stack)
	free := l.serve(l.A, "--no-syscall-filter")
	if s := status(t, free, "Seccomp"); s != "0" {
		t.Errorf("--no-syscall-filter: Seccomp %s", s)
	}
	terminate(t, free)
}

// TestServeAsUser runs the stack as a user of its own, with the capabilities of the systemd
// unit. Programs and commands of all users use it, and what its owner changes lasts.
func TestServeAsUser(t *testing.T) {
	l := newLab(t, "setpriv")
	caps := unitCaps(t)
	stack := l.serveConfined(l.A, caps, "--no-default-eid")
	server := l.server()
	for _, uid := range []string{"0", serviceUser, thirdUser} {
		l.exchanges(uid, l.B.Addr()+":5001", delegated(t, uid)...)
		out, err := l.asUser(uid, bin("smcr"), "--backend", "user", "linkgroup", "list")
		if err != nil || !strings.Contains(out, "CLNT") {
			t.Errorf("user %s: %v\n%s", uid, err, out)
		}
	}
	if got := status(t, stack, "Uid"); !strings.HasPrefix(got, serviceUser+"\t"+serviceUser) {
		t.Errorf("the stack is of user %s", got)
	}
	if got := status(t, stack, "Seccomp"); got != "2" {
		t.Errorf("Seccomp %s", got)
	}
	if out, err := l.asUser(thirdUser, bin("smcr"), "ueid", "add", "BAD.EID"); err == nil {
		t.Errorf("a third user changes the stack: %s", out)
	}
	if out, err := l.asUser(serviceUser, bin("smcr"), "ueid", "add", "GOOD.EID"); err != nil || out != "" {
		t.Errorf("the owner cannot change the stack: %v, %s", err, out)
	}
	terminate(t, stack)
	stack = l.serveConfined(l.A, caps, "--no-default-eid")
	if out := l.smcr(l.A, "ueid", "list"); !strings.Contains(out, "GOOD.EID") {
		t.Errorf("the change of the owner is lost:\n%s", out)
	}
	if out, err := l.try(l.A, "serve", "--prepare", thirdUser); err == nil || !strings.Contains(err.Error(), "already running") {
		t.Errorf("the place of a stack is given away: %v, %s", err, out)
	}
	terminate(t, stack)
	// Root takes the place back.
	stack = l.serve(l.A)
	l.exchanges(thirdUser, l.B.Addr()+":5001", delegated(t, thirdUser)...)
	terminate(t, stack)
	terminate(t, server)
}

// delegated is the begin of a command line of a program in a part of the tree of cgroups in which its user may make some, as below
// a user manager of systemd.
func delegated(t *testing.T, uid string) []string {
	t.Helper()
	dir := filepath.Join(cgroupTop(t), fmt.Sprintf("smcr-test-user-%s-%d", uid, os.Getpid()))
	if err := os.Mkdir(dir, 0o755); errors.Is(err, os.ErrExist) {
		return inCgroup(dir)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netnstest.Until(settleTime, func() error {
			left, err := filepath.Glob(dir + "/smcr-run-*")
			for _, below := range left {
				err = errors.Join(err, os.Remove(below))
			}
			return errors.Join(err, os.Remove(dir))
		}); err != nil {
			t.Error(err)
		}
	})
	n, err := strconv.Atoi(uid)
	if err == nil {
		err = errors.Join(os.Chown(dir, n, n), os.Chown(filepath.Join(dir, "cgroup.procs"), n, n))
	}
	if err != nil {
		t.Fatal(err)
	}
	return inCgroup(dir)
}

// TestServeWithout starts the stack without one of the capabilities of the unit. It says
// what is lost, and that is what is lost.
func TestServeWithout(t *testing.T) {
	l := newLab(t, "setpriv")
	all := unitCaps(t)
	const admin = "CAP_SYS_ADMIN"
	server := l.server()
	addr := l.B.Addr() + ":5001"
	for _, missing := range all {
		t.Run(missing, func(t *testing.T) {
			l := &lab{Pair: l.Pair, t: t}
			// For the kernel, CAP_SYS_ADMIN includes CAP_BPF.
			caps := slices.DeleteFunc(slices.Clone(all), func(c string) bool { return c == missing || missing == "CAP_BPF" && c == admin })
			if missing == "CAP_NET_RAW" {
				l.smcr(l.A, "serve", "--prepare", serviceUser)
				argv := confined(caps, bin("smcr"), "serve")
				p := l.A.Go(t, argv[0], argv[1:]...)
				var exit *exec.ExitError
				if err := p.Wait(startTime); !errors.As(err, &exit) || exit.ExitCode() != exitPermission || !strings.Contains(p.Log(), "CAP_NET_RAW") {
					t.Errorf("%v\n%s", err, p.Log())
				}
				return
			}
			stack := l.serveConfined(l.A, caps)
			if want := "capability=" + missing + " lost="; !strings.Contains(stack.Log(), want) {
				t.Errorf("no %q in\n%s", want, stack.Log())
			}
			if n := strings.Count(stack.Log(), "a capability is missing"); n != len(all)-len(caps) {
				t.Errorf("%d capabilities are missing:\n%s", n, stack.Log())
			}
			l.plainInstead(addr, missing)
			terminate(t, stack)
		})
	}
	terminate(t, server)
}

// plainInstead checks that a program runs over TCP, with the reason, if the stack lacks a right. By --mode user, it does not run.
func (l *lab) plainInstead(addr, missing string) {
	l.t.Helper()
	client := l.A.Go(l.t, bin("smcr"), "run", "--", bin("probe"), "client", addr, "2")
	if err := client.WaitOutput("holding 2 connections", startTime); err != nil {
		l.t.Fatal(err)
	}
	terminate(l.t, client)
	const says = "the stack cannot take connections of programs at the devices, so they stay TCP: "
	if log := client.Log(); !strings.HasPrefix(log, "smcr: all connections over TCP: ") || strings.Count(log, says) != 1 || !strings.Contains(log, "not permitted") && !strings.Contains(log, "permission denied") {
		l.t.Errorf("without %s:\n%s", missing, log)
	}
	if out, err := l.try(l.A, "run", "--mode", "user", "--", "true"); err == nil || !strings.Contains(err.Error(), "cannot take connections of programs at the devices") {
		l.t.Errorf("without %s: %v, %s", missing, err, out)
	}
}

// TestServiceManager has a stack report to a service manager: its start, that it works, a
// reload and its end.
func TestServiceManager(t *testing.T) {
	l := newLab(t)
	dir, err := os.MkdirTemp("", "smcr-notify-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	cmd := l.A.Command(t.Context(), bin("smcr"), "serve", "--no-default-eid")
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+name, "WATCHDOG_USEC=300000")
	stack := l.A.GoCmd(t, cmd)
	b := make([]byte, 4096)
	// hears waits for a message, past messages that the stack works.
	hears := func(want string) {
		t.Helper()
		_ = c.SetReadDeadline(time.Now().Add(startTime))
		for {
			n, err := c.Read(b)
			if err != nil {
				t.Fatalf("no %s: %v\n%s", want, err, stack.Log())
			}
			if got := string(b[:n]); strings.HasPrefix(got, want) {
				return
			} else if got != "WATCHDOG=1" {
				t.Errorf("%q, want %s", got, want)
			}
		}
	}
	hears("READY=1\nSTATUS=sockets in /run/smcr/")
	for range 5 {
		hears("WATCHDOG=1")
	}
	// A process that stood still for longer than the interval goes on: the limit is that of
	// the service manager alone.
	if err := stack.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // Real time: the stack stands still for longer than the interval.
	if err := stack.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		hears("WATCHDOG=1") // some may be from before
	}
	if err := stack.Signal(unix.SIGHUP); err != nil {
		t.Fatal(err)
	}
	hears("RELOADING=1\nMONOTONIC_USEC=")
	hears("READY=1")
	hears("WATCHDOG=1")
	if err := stack.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	hears("STOPPING=1")
	wantEnd(t, stack)
}

// TestPrepareSweeps: what the stack of a user has left in a network namespace that is gone, who prepares the place of the next
// one removes: a stack that is not root's may not, and there may be as many namespaces as somebody makes.
func TestPrepareSweeps(t *testing.T) {
	l := newLab(t, "setpriv", "unshare")
	script := bin("smcr") + " serve --prepare " + serviceUser + ` && exec "$@"`
	argv := append([]string{"--net", "sh", "-c", script, "sh"}, confined(unitCaps(t), bin("smcr"), "serve")...)
	var left []string
	for range 3 {
		stack := l.A.Go(t, "unshare", argv...)
		if err := stack.WaitOutput("msg=serving", startTime); err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`msg=serving .*sockets=(/\S+)`).FindStringSubmatch(stack.Log())
		if m == nil {
			t.Fatalf("where are its sockets?\n%s", stack.Log())
		}
		if _, err := os.Stat(m[1]); err != nil {
			t.Fatal(err)
		}
		left = append(left, m[1])
		stack.Kill()
	}
	err := netnstest.Until(settleTime, func() error { // until the kernel has ended the namespaces
		l.smcr(l.A, "serve", "--prepare", serviceUser)
		for _, name := range left {
			if _, err := os.Stat(name); err == nil {
				return fmt.Errorf("%s is left of a stack whose network namespace is gone", name)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
