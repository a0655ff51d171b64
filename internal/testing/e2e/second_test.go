// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// TestSecondStack: of two containers with one network namespace, and a /run each, one has the stack. The other is told so, and its programs are
// TCP.
func TestSecondStack(t *testing.T) {
	t.Parallel()
	l := newLab(t, "python3", "unshare")
	first := l.serve(l.A)
	l.serve(l.B)
	server := l.under(l.B, "python3", "-c", reader, l.B.Addr(), "8080")
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	client := l.under(l.A, "python3", "-c", talker, l.B.Addr(), "8080")
	if err := client.WaitPart("hello", startTime); err != nil {
		t.Fatal(err)
	}
	elsewhere := func(pidns bool, args ...string) (string, error) {
		argv := []string{"--mount", "--propagation", "private"}
		if pidns {
			argv = append(argv, "--pid", "--fork", "--mount-proc", "--kill-child")
		}
		argv = append(argv, "sh", "-c", `mount -t tmpfs -o mode=755 tmpfs /run && exec "$@"`, "sh", bin("smcr"))
		out, err := l.A.Command(t.Context(), "unshare", append(argv, args...)...).CombinedOutput()
		return string(out), err
	}
	for _, pidns := range []bool{false, true} {
		want := fmt.Sprintf("the stack of this network namespace is process %d", first.Pid())
		if pidns {
			want += " of another PID namespace"
		}
		for _, args := range [][]string{{"serve"}, {"run", "--mode", "user", "--", "true"}} {
			if out, err := elsewhere(pidns, args...); err == nil || !strings.Contains(out, want) || !strings.Contains(out, "/run/smcr is not the one here") {
				t.Errorf("smcr %q: %v, %s; want %q", args, err, out, want)
			}
		}
	}
	if out, err := elsewhere(false, "run", "-v", "--", "true"); err != nil || !strings.Contains(out, "TCP") {
		t.Errorf("a program: %v\n%s", err, out)
	}
	// The first one goes on.
	select {
	case <-client.Done():
		t.Errorf("the connection ended:\n%s", client.Log())
	default:
	}
	again := l.under(l.A, "python3", "-c", talker, l.B.Addr(), "8080")
	if err := again.WaitPart("hello", startTime); err != nil {
		t.Error(err)
	}
}
