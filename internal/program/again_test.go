// SPDX-License-Identifier: Apache-2.0

package program

import (
	"errors"
	"fmt"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// TestAgain: what a signal interrupts is called again, and another error is returned.
func TestAgain(t *testing.T) {
	for _, want := range []error{nil, unix.EPERM} {
		calls := 0
		err := Again(func() error {
			if calls++; calls < 3 {
				return fmt.Errorf("interrupted: %w", unix.EINTR)
			}
			return want
		})
		if calls != 3 || err != want {
			t.Errorf("%d calls, %v, want 3 and %v", calls, err, want)
		}
	}
}

// TestWait: the status of a child is there when it has ended, and not before.
func TestWait(t *testing.T) {
	testkind.System(t)
	cmd := exec.Command("/bin/sh", "-c", "read x; exit 7")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if pid, _, err := Wait(cmd.Process.Pid, unix.WNOHANG); pid != 0 || err != nil {
		t.Errorf("it runs: %d, %v", pid, err)
	}
	in.Close()
	if pid, ws, err := Wait(cmd.Process.Pid, 0); pid != cmd.Process.Pid || ws.ExitStatus() != 7 || err != nil {
		t.Errorf("it has ended: %d, %#x, %v", pid, ws, err)
	}
	if _, _, err := Wait(cmd.Process.Pid, 0); !errors.Is(err, unix.ECHILD) {
		t.Errorf("it is gone: %v", err)
	}
}
