// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"smcr/internal/testing/guest"
)

// TestGuest boots one guest for all checks.
func TestGuest(t *testing.T) {
	g := guest.New(t, guest.Config{Limit: 5 * time.Minute})
	t.Logf("kernel %s, boot took %v", g.Kernel(), g.BootTime())

	run := func(t *testing.T, argv ...string) guest.Result {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r, err := g.Run(ctx, argv...)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}

	t.Run("Output", func(t *testing.T) {
		r := run(t, "sh", "-c", "echo out; echo err >&2; hostname; uname -r")
		if want := "out\nguest\n" + g.Kernel() + "\n"; r.Stdout != want || r.Stderr != "err\n" {
			t.Errorf("got %+v, want stdout %q", r, want)
		}
	})
	t.Run("Stdin", func(t *testing.T) {
		c := g.Command("sh", "-c", `cat; echo "$X"; pwd`)
		c.Stdin, c.Env, c.Dir = []byte("in\n"), []string{"X=y"}, "/usr"
		r, err := c.Run(t.Context())
		if err != nil || r.Stdout != "in\ny\n/usr\n" {
			t.Errorf("got %+v, %v", r, err)
		}
	})
	t.Run("LongOutput", func(t *testing.T) {
		if r := run(t, "head", "-c", "3000000", "/dev/zero"); r.Stdout != strings.Repeat("\x00", 3000000) {
			t.Errorf("got %d bytes", len(r.Stdout))
		}
	})
	t.Run("Status", func(t *testing.T) {
		_, err := g.Run(t.Context(), "sh", "-c", "echo why >&2; exit 7")
		var exit *guest.ExitError
		if !errors.As(err, &exit) || exit.Status != 7 || exit.Stderr != "why\n" {
			t.Errorf("exit 7: got error %v", err)
		}
		_, err = g.Run(t.Context(), "/nosuch")
		if !errors.As(err, &exit) || exit.Reason == "" {
			t.Errorf("unknown program: got error %v", err)
		}
	})
	t.Run("Signal", func(t *testing.T) {
		c := g.Command("sh", "-c", "echo ready; sleep 60")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if err := c.WaitStdout(t.Context(), "ready"); err != nil {
			t.Fatal(err)
		}
		if err := c.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		_, err := c.Wait(t.Context())
		var exit *guest.ExitError
		if !errors.As(err, &exit) || exit.Signal != int(syscall.SIGTERM) {
			t.Errorf("got error %v", err)
		}
	})
	t.Run("Context", func(t *testing.T) {
		// Real time: the deadline is what the test is about.
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := g.Run(ctx, "sleep", "60"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got error %v", err)
		}
		// Run does not wait for the guest, which ends the command when it reads of it.
		if _, err := g.Run(t.Context(), "timeout", "60", "sh", "-c", "while pgrep -x sleep; do :; done"); err != nil {
			t.Errorf("the command still runs: %v", err)
		}
	})
	t.Run("Parallel", func(t *testing.T) {
		const n = 8
		results := make(chan error, n)
		for range n {
			go func() {
				_, err := g.Run(t.Context(), "sh", "-c", "sleep 0.2; test $(id -u) = 0")
				results <- err
			}()
		}
		for range n {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
	})
	t.Run("Share", func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "script")
		if err := os.WriteFile(file, []byte("#!/bin/sh\necho hi >"+guest.SharePath+"/result"), 0o755); err != nil {
			t.Fatal(err)
		}
		name, err := g.Push(file)
		if err != nil {
			t.Fatal(err)
		}
		run(t, name)
		if b, err := os.ReadFile(filepath.Join(g.Share(), "result")); err != nil || string(b) != "hi\n" {
			t.Errorf("result: %q, %v", b, err)
		}
	})
	t.Run("Install", func(t *testing.T) {
		// What the host has installed does not count: not even under this name.
		file := filepath.Join(t.TempDir(), "smcr")
		if err := os.WriteFile(file, []byte("#!/bin/sh\necho installed"), 0o755); err != nil {
			t.Fatal(err)
		}
		run(t, "sh", "-c", "for d in /usr/local/bin /usr/bin; do echo exit 1 >$d/smcr && chmod 755 $d/smcr; done")
		if err := g.Install(file); err != nil {
			t.Fatal(err)
		}
		for _, shell := range []string{"-c", "-lc"} {
			if r := run(t, "bash", shell, "smcr"); r.Stdout != "installed\n" {
				t.Errorf("bash %s: smcr prints %q", shell, r.Stdout)
			}
		}
	})
	t.Run("HostUntouched", func(t *testing.T) {
		name := filepath.Join(t.TempDir(), "file") // the /tmp of the guest is a separate one
		mark := "/etc/smcr-guest-test"
		run(t, "sh", "-c", "mkdir -p $(dirname $0) && echo x >$0 && echo x >$1 && cat $1", name, mark)
		for _, f := range []string{name, mark} {
			if _, err := os.Stat(f); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s reached the host: %v", f, err)
			}
		}
	})
	t.Run("SMC", func(t *testing.T) {
		ctx := t.Context()
		if err := g.LoadSMC(ctx); err != nil {
			t.Fatal(err)
		}
		if err := g.AddVeth(ctx, "v0", "v1", "peer"); err != nil {
			t.Fatal(err)
		}
		if err := g.AddAddr(ctx, "v0", "10.9.0.1/24"); err != nil {
			t.Fatal(err)
		}
		if err := g.AddRXE(ctx, "rxe0", "v0"); err != nil {
			t.Fatal(err)
		}
		run(t, "ip", "-n", "peer", "addr", "add", "10.9.0.2/24", "dev", "v1")
		// Nobody listens on the port. The other end of the veth pair answers so.
		_, err := g.Run(ctx, "ip", "netns", "exec", "peer", "timeout", "20", "bash", "-c", "exec 3<>/dev/tcp/10.9.0.1/1")
		if err == nil || !strings.Contains(err.Error(), "Connection refused") {
			t.Errorf("connect over the veth pair: %v", err)
		}
		if r := run(t, "rdma", "link"); !strings.Contains(r.Stdout, "link rxe0/1 state ACTIVE") {
			t.Errorf("rdma link: %s", r.Stdout)
		}
	})
	t.Run("Close", func(t *testing.T) {
		c := g.Command("sleep", "60")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		if err := g.Close(); err != nil {
			t.Error(err)
		}
		if _, err := c.Wait(t.Context()); !errors.Is(err, guest.ErrClosed) {
			t.Errorf("Wait after Close: got error %v", err)
		}
		if err := g.Command("true").Start(); !errors.Is(err, guest.ErrClosed) {
			t.Errorf("Start after Close: got error %v", err)
		}
		if _, err := os.Stat(g.Share()); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the guest's directory after Close: %v", err)
		}
	})
}
