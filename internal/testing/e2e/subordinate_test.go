// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
)

// TestHostileSubordinates: a user who becomes the user's subordinate users one after the other gets
// the share of one user, as the user and all of them together.
func TestHostileSubordinates(t *testing.T) {
	const owner = "6001"
	l := newLab(t, "setpriv", "unshare", "mount")
	ids := filepath.Join(t.TempDir(), "subuid")
	if err := os.WriteFile(ids, []byte(owner+":100000:65536\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	stack := l.A.Go(t, "unshare", "--mount", "sh", "-c", `mount --bind "$0" /etc/subuid && exec "$@"`, ids,
		bin("smcr"), "serve", "--user-sessions", "2")
	if err := netnstest.Until(startTime, func() error {
		_, err := l.try(l.A, "--backend", "user", "info")
		return err
	}); err != nil {
		t.Fatalf("%v\n%s", err, stack.Log())
	}
	for _, uid := range []string{owner, "165535"} {
		argv := as(uid, bin("smcr"), "run", "--mode", "user", "--", "sh", "-c", "echo running; exec sleep 100")
		if err := l.A.Go(t, argv[0], argv[1:]...).WaitOutput("running", startTime); err != nil {
			t.Fatal(err)
		}
	}
	const limit = "programs under 'smcr run'"
	for _, uid := range []string{"100000", "123456", owner} {
		out, err := l.asUser(uid, bin("smcr"), "run", "--mode", "user", "--", "echo", "ran")
		if err == nil || !strings.Contains(out, "user "+owner+" has 2 of at most 2 "+limit) {
			t.Errorf("user %s: %v\n%s", uid, err, out)
		}
	}
	for _, uid := range []string{"0", "165536", "99999", "6002"} {
		if out, err := l.asUser(uid, bin("smcr"), "run", "--mode", "user", "--", "echo", "ran"); err != nil || !strings.Contains(out, "ran") {
			t.Errorf("user %s, who has nothing: %v\n%s", uid, err, out)
		}
	}
	terminate(t, stack)
}
