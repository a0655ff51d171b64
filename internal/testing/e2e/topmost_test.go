// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"smcr/internal/cgroup"
	"smcr/internal/testing/netnstest"
)

// TestTopmost: a program that was started in the topmost cgroup has one that the stack can remove, although nobody may write to the
// folder of the topmost one. If the stack is killed and the program ends after it, the next stack removes it, also that of another
// network namespace.
func TestTopmost(t *testing.T) {
	l := newLab(t)
	if own, err := cgroup.Of(0); err != nil || own != "/" {
		t.Skip("this process is not in the topmost cgroup: ", own, err)
	}
	stack := l.serve(l.A)
	start := func() (p *netnstest.Process, dir string) {
		t.Helper()
		p = l.A.Go(t, bin("smcr"), "run", "--mode", "user", "--", "/bin/sh", "-c", "cat /proc/self/cgroup; echo ready; exec sleep 600")
		if err := p.WaitOutput("ready", startTime); err != nil {
			t.Fatal(err, p.Log())
		}
		own, err := cgroup.Of(p.Pid())
		if err != nil || !strings.HasPrefix(own, "/smcr/"+cgroup.RunPrefix) {
			t.Fatalf("the program is in %s, %v", own, err)
		}
		return p, filepath.Join(cgroupTop(t), own)
	}
	gone := func(dir string) {
		t.Helper()
		if err := netnstest.Until(settleTime, func() error {
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("%s is left: %w", dir, err)
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	p, dir := start()
	p.Kill()
	gone(dir)
	p, dir = start()
	stack.Kill()
	p.Kill()
	stack = l.serve(l.B)
	gone(dir)
	terminate(t, stack)
}
