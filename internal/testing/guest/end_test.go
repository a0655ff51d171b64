// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"smcr/internal/testing/guest"
	"smcr/internal/testing/testkind"
)

func TestLimit(t *testing.T) {
	g, err := guest.Boot(t.Context(), guest.Config{Limit: time.Second})
	if err == nil {
		g.Close()
		t.Fatal("the guest booted in less than a second")
	}
	if !errors.Is(err, guest.ErrLimit) {
		guest.Check(t, err)
	}
}

// bootEnv makes TestKilled boot a guest and wait to be killed.
const bootEnv = "SMCR_TEST_BOOT"

// TestKilled kills a process that has a guest. Nothing of the guest may remain.
func TestKilled(t *testing.T) {
	if os.Getenv(bootEnv) != "" {
		g := guest.New(t, guest.Config{})
		fmt.Println(filepath.Dir(g.Share()))
		select {} // the test kills this process
	}
	guest.SkipShort(t)
	guest.Check(t, guest.Available())
	_, err := guest.WithSMC.Find(t.Context())
	guest.Check(t, err)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilled$", "-test.timeout=3m")
	// The guest of that process counts as one of this test.
	guest.AwaitTurn(t)
	cmd.Env = append(os.Environ(), bootEnv+"=1", guest.TurnsVariable+"=")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	dir := strings.TrimSpace(line)
	if err != nil || !filepath.IsAbs(dir) {
		t.Fatalf("the guest did not boot: %q, %v, %v", line, err, cmd.Wait())
	}
	if n := len(users(t, dir)); n == 0 {
		t.Error("no QEMU runs")
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the process ended well")
	}
	testkind.Eventually(t, "nothing is left behind", func() (any, bool) {
		_, err := os.Stat(dir)
		left := users(t, dir)
		return fmt.Sprintf("%s (%v), processes %v", dir, err, left), errors.Is(err, os.ErrNotExist) && len(left) == 0
	})
}

// users returns the processes, except zombies, whose command line contains dir.
func users(t *testing.T, dir string) (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		// Processes begin and end meanwhile.
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte(dir)) {
			pids = append(pids, filepath.Base(filepath.Dir(f)))
		}
	}
	return pids
}
