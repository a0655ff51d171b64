// SPDX-License-Identifier: Apache-2.0

package program

import (
	"errors"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

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
