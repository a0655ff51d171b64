// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// unmappedEnv makes TestUnmappedUser the client in a user namespace.
const unmappedEnv = "SMCR_PLACE_UNMAPPED"

// TestUnmappedUser: a process whose user has no number in its user namespace sees the files and
// processes of all users without one as if they were its own. It trusts none of them, also where
// XDG_RUNTIME_DIR is that of another user, as after su(1).
func TestUnmappedUser(t *testing.T) {
	testkind.System(t)
	if os.Getenv(unmappedEnv) != "" {
		c, err := Dial(t.Context(), Commands)
		if err == nil {
			t.Errorf("trusts %v, and is user %d", c.RemoteAddr(), os.Geteuid())
		}
		if !errors.Is(err, ErrAbsent) && !errors.Is(err, os.ErrPermission) {
			t.Error(err)
		}
		if dir, err := Runtime(); err == nil {
			t.Errorf("the user's own directory is %s", dir)
		}
		return
	}
	_, user := users(t)
	cookie, err := Cookie()
	if err != nil {
		t.Skip(err)
	}
	user.cookie = cookie
	as(t, other, func() {
		if _, err := stack(user); err != nil {
			t.Error(err)
		}
	})
	if c, err := user.dial(t.Context(), Commands); err != nil {
		t.Fatal(c, err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestUnmappedUser$")
	cmd.Env = append(os.Environ(), unmappedEnv+"=1", "XDG_RUNTIME_DIR="+user.own)
	cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, os.ErrPermission) {
		t.Skip(err)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
