// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

// start runs exe, which sleeps, with argv as its arguments.
func sleeper(t *testing.T, exe string, argv ...string) *exec.Cmd {
	t.Helper()
	// The argument after -c is the name of the shell, and the others are not used. The shell
	// does not replace itself, because it has another command to run.
	cmd := &exec.Cmd{Path: exe, Args: argv}
	cmd.Env = []string{"WATCHDOG_USEC=7", "PATH=" + os.Getenv("PATH")}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}
