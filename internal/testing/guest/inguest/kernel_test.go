// SPDX-License-Identifier: Apache-2.0

package inguest

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"smcr/nl"
	"smcr/nl/nltest"

	"golang.org/x/sys/unix"
	_ "smcr/internal/testing/firstthread"
)

func TestMain(m *testing.M) {
	if os.Getenv("SMCR_GUEST") == "" {
		fmt.Println("not in a guest: smcr/internal/testing/guesttest runs these tests")
		return
	}
	os.Exit(m.Run())
}

func dialKernel(t *testing.T) nl.Control {
	t.Helper()
	c, err := nl.DialKernel(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestControl changes the tables of the kernel, which must be empty before.
func TestControl(t *testing.T) {
	nltest.RunControlSuite(t, dialKernel, nltest.Options{NetDev: "lo"})
}

// TestReadOnly reads all tables, with rows such as link groups in use.
func TestReadOnly(t *testing.T) {
	nltest.RunControlSuite(t, dialKernel, nltest.Options{ReadOnly: true})
}

// TestUnprivileged: a user without privileges can read, but every change is refused.
func TestUnprivileged(t *testing.T) {
	onThread(t, func() error {
		// This system call changes only this thread; package syscall would change all.
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); e != 0 {
			return e
		}
		return nil
	})
	c := dialKernel(t)
	defer c.Close()
	ctx := t.Context()
	if s, err := c.SysInfo(ctx); err != nil || s.Version < 1 {
		t.Errorf("SysInfo: %+v, %v", s, err)
	}
	if _, err := c.Connections(ctx); err != nil {
		t.Errorf("Connections: %v", err)
	}
	for what, err := range map[string]error{
		"AddUEID":         c.AddUEID(ctx, "T1"),
		"RemoveUEID":      c.RemoveUEID(ctx, "T1"),
		"FlushUEID":       c.FlushUEID(ctx),
		"SetHSLimitation": c.SetHSLimitation(ctx, true),
		"AddPNET":         c.AddPNET(ctx, nl.PNET{ID: "NET1", NetDev: "lo"}),
		"RemovePNET":      c.RemovePNET(ctx, "NET1"),
		"FlushPNET":       c.FlushPNET(ctx),
	} {
		if !errors.Is(err, os.ErrPermission) {
			t.Errorf("%s: got error %v, want one that matches %v", what, err, os.ErrPermission)
		}
	}
}

// TestNamespace uses a new network namespace: the client asks for the namespace of its
// thread, whose counters are zero.
func TestNamespace(t *testing.T) {
	onThread(t, func() error { return unix.Unshare(unix.CLONE_NEWNET) })
	c := dialKernel(t)
	defer c.Close()
	ctx := t.Context()
	s, err := c.Stats(ctx)
	if err != nil || s.SMCR.Connections() != 0 || s.SMCR.TXCalls != 0 {
		t.Errorf("Stats: %+v, %v", s, err)
	}
	if conns, err := c.Connections(ctx); err != nil || len(conns) != 0 {
		t.Errorf("Connections: %v, %v", conns, err)
	}
	if groups, err := c.LinkGroups(ctx); err != nil || len(groups) != 0 {
		t.Errorf("LinkGroups: %v, %v", groups, err)
	}
}

// onThread keeps the test on its thread and changes that thread. The thread ends with the
// goroutine of the test.
func onThread(t *testing.T, change func() error) {
	t.Helper()
	runtime.LockOSThread()
	if err := change(); err != nil {
		t.Fatal(err)
	}
}
