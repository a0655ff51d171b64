// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// smallDisk is the command line of a shell with a directory /run/smcr that has room for a
// few small files only. The stack puts its sockets, its state and its log there.
const smallDisk = "mount -t tmpfs -o size=64k,mode=755 tmpfs /run/smcr && exec "

// TestFullDisk fills the file system of the stack's files under traffic. The traffic goes
// on, a command whose change cannot be kept says so, and works when there is room again.
func TestFullDisk(t *testing.T) {
	skipShort(t)
	netnstest.Require(t, "unshare", "nsenter", "dd")
	l := newLab(t, netnstest.Options{})
	l.serve(l.A)
	p := l.B.Go(t, "unshare", "--mount", "--propagation", "private", "sh", "-c", smallDisk+bin("smcr")+" serve")
	// The shell becomes the stack, so the process stays the same.
	l.mounts = fmt.Sprintf("/proc/%d/ns/mnt", p.Pid())
	l.stack(l.B, p)
	l.watch("stack of B", func() (int, error) { return p.Pid(), nil })
	l.serveTraffic()
	if err := l.healthy(2); err != nil {
		t.Fatal(err)
	}
	l.measure()
	l.fill(t)

	r, log := l.client(4, "-bytes", "1000000")
	r.Fault, r.Traffic, r.Runs = "full disk: state file", "4 connections", 1
	r.Outcome = "the connections live on, and a command whose change cannot be kept says so"
	if r.Failed > 0 || r.TCP > 0 {
		t.Errorf("with a full disk: %+v\n%s", r, log)
	}
	if said := l.run(t, bin("smcr"), "--backend", "user", "ueid", "add", "FULLDISK"); !strings.Contains(said, "no space") {
		t.Errorf("smcr ueid add with a full disk: %s", said)
	}
	if info, err := l.smcr(l.B, "info", "--output", "json"); err != nil || !strings.Contains(info, "no space") {
		t.Errorf("smcr info with a full disk: %v, %s", err, info)
	}
	l.run(t, "rm", "/run/smcr/full")
	if _, err := l.smcr(l.B, "ueid", "add", "ROOM"); err != nil {
		t.Errorf("smcr ueid add when there is room again: %v", err)
	}
	if info, err := l.smcr(l.B, "info", "--output", "json"); err != nil || strings.Contains(info, "no space") {
		t.Errorf("smcr info when there is room again: %v, %s", err, info)
	}
	// The next stack has both changes.
	if err := p.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	hold := l.B.Go(t, "nsenter", "--mount="+l.mounts, "--", "sleep", "infinity")
	if err := p.Wait(SettleTime); err != nil {
		t.Fatal(err)
	}
	l.mounts = fmt.Sprintf("/proc/%d/ns/mnt", hold.Pid())
	argv := l.mounted(l.B, []string{bin("smcr"), "serve"})
	next := l.B.Go(t, argv[0], argv[1:]...)
	l.stack(l.B, next)
	l.watch("stack of B", func() (int, error) { return next.Pid(), nil })
	ids, err := l.smcr(l.B, "ueid", "list")
	if err != nil || !strings.Contains(ids, "FULLDISK") || !strings.Contains(ids, "ROOM") {
		t.Errorf("the next stack has %v, %s", err, ids)
	}
	if err := l.healthy(2); err != nil {
		t.Fatal(err)
	}
	l.measure()
	if err := l.settle(&r); err != nil {
		t.Error(err)
	}
	finish(t, r)
}

// TestFullDiskAtStart starts a stack on demand that cannot write its log. Either it serves,
// or smcr run says why not and the program uses TCP.
func TestFullDiskAtStart(t *testing.T) {
	skipShort(t)
	netnstest.Require(t, "unshare", "nsenter", "dd")
	l := newLab(t, netnstest.Options{})
	l.serve(l.A)
	l.serveTraffic()
	hold := l.B.Go(t, "unshare", "--mount", "--propagation", "private", "sh", "-c", smallDisk+"sh -c 'echo mounted; exec sleep infinity'")
	if err := hold.WaitOutput("mounted", startTime); err != nil {
		t.Fatal(err)
	}
	l.mounts = fmt.Sprintf("/proc/%d/ns/mnt", hold.Pid())
	l.fill(t)
	r, log := l.client(4, "-bytes", "1000000")
	r.Fault, r.Traffic, r.Runs = "full disk: stack started on demand", "4 connections", 1
	r.Outcome = "the connections are SMC-R or TCP, or smcr run says why the program does not run"
	if !r.Good() {
		t.Errorf("%+v\n%s", r, log)
	}
	t.Log(log)
	l.run(t, "rm", "/run/smcr/full")
	if err := l.healthy(2); err != nil {
		t.Error(err)
	}
	if err := l.serverSaw(&r); err != nil {
		t.Error(err)
	}
	finish(t, r)
}

// run runs a command where the stack of host B has its files, and returns what it writes.
func (l *lab) run(t *testing.T, argv ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTime)
	defer cancel()
	argv = l.mounted(l.B, argv)
	out, err := l.B.Command(ctx, argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%q: %v: %s", argv, err, out)
	}
	return string(out)
}

// fill fills the file system of /run/smcr with a file.
func (l *lab) fill(t *testing.T) {
	t.Helper()
	l.run(t, "sh", "-c", "! dd if=/dev/zero of=/run/smcr/full bs=4k 2>/dev/null")
}
