// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"smcr/internal/testing/testkind"
)

func TestParseTop(t *testing.T) {
	const v1 = "36 31 0:33 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
	for _, test := range []struct{ mounts, want string }{
		{"", ""},
		{v1, ""},
		{v1 + "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n", "/sys/fs/cgroup/unified"},
		{"30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n", "/sys/fs/cgroup"},
		{"30 23 0:26 /part /mnt rw - cgroup2 none rw\n31 23 0:26 / /cg rw master:1 shared:2 - cgroup2 none rw\n", "/cg"},
		{"30 23 0:26 / /with\\040space rw - cgroup2 none rw\n", ""},
		{"30 23 0:26 / /short - cgroup2\n30 - \n - cgroup2\n", ""},
	} {
		got, err := parseTop(strings.NewReader(test.mounts))
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%q: %q, %v, want %q", test.mounts, got, err, test.want)
		}
	}
}

func TestParseOf(t *testing.T) {
	for _, test := range []struct{ file, want string }{
		{"0::/\n", "/"},
		{"0::/user.slice/a b.scope\n", "/user.slice/a b.scope"},
		{"12:cpu:/x\n1:name=systemd:/y\n0::/z\n", "/z"},
		{"0::/gone (deleted)\n", "/gone"},
		{"0::/with:colon", "/with:colon"},
		{"0::/../other\n", ""}, // outside of the namespace
		{"0::/..\n", ""},
		{"12:cpu:/x\n", ""},
		{"", ""},
		{"0::relative\n", ""},
	} {
		got, err := parseOf([]byte(test.file))
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("%q: %q, %v, want %q", test.file, got, err, test.want)
		}
	}
	if _, err := parseOf([]byte("0::/../other\n")); !errors.Is(err, ErrOutside) {
		t.Error(err)
	}
}

func FuzzParseOf(f *testing.F) {
	f.Add([]byte("12:cpu:/x\n0::/z\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := parseOf(b); err == nil && (!Valid(p) || !filepath.IsLocal("./"+p)) {
			t.Errorf("%q", p)
		}
	})
}

// TestEnter: a process that is moved is in the cgroup, which is populated until it ends.
func TestEnter(t *testing.T) {
	testkind.System(t)
	top, err := Top()
	if err != nil {
		t.Skip(err)
	}
	name := fmt.Sprintf("/smcr-test-cgroup-%d", os.Getpid())
	dir := top + name
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip("the cgroup v2 tree is not for this process to write: ", err)
	}
	defer os.Remove(dir)
	if id, err := ID(dir); err != nil || id == 0 {
		t.Error(id, err)
	}
	if _, err := ID(filepath.Join(dir, Events)); err == nil {
		t.Error("a file has a number")
	}
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := Enter(dir, cmd.Process.Pid); err != nil {
		t.Error(err)
	}
	if p, err := Of(cmd.Process.Pid); p != name || err != nil {
		t.Error(p, err)
	}
	if there, err := Populated(dir); !there || err != nil {
		t.Error(there, err)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if there, err := Populated(dir); there || err != nil {
		t.Error(there, err)
	}
	if err := os.Remove(dir); err != nil {
		t.Error(err)
	}
	if _, err := Populated(dir); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestValid(t *testing.T) {
	for p, want := range map[string]bool{
		"/": true, "/a": true, "/system.slice/x@y.service": true, "/sys/fs/cgroups": true, "/sys/fs": true,
		"": false, "a": false, "/a/": false, "//a": false, "/..": false, "/../a": false, "/a/../b": false, "/a\x00": false,
		"/sys/fs/cgroup": false, "/sys/fs/cgroup/a": false,
	} {
		if got := Valid(p); got != want {
			t.Errorf("%q: %t", p, got)
		}
	}
	for p, want := range map[string]bool{"/smcr-run-1-x": true, "/a/smcr-run-": true, "/smcr-run-1-x/a": false, "/a-smcr-run-1": false, "/": false} {
		if got := IsRun(p); got != want {
			t.Errorf("%q: %t", p, got)
		}
	}
}

// TestOpenTop: a mount of this process alone has the tree that is mounted, and leaves no mount behind.
func TestOpenTop(t *testing.T) {
	testkind.System(t)
	top, err := Top()
	if err != nil {
		t.Skip(err)
	}
	want, err := ID(top)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	private, err := ownPath()
	if errors.Is(err, os.ErrPermission) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	if id, err := ID(private + "/."); id != want || err != nil {
		t.Errorf("the top is %d, %v, want %d", id, err, want)
	}
	if again, err := ownPath(); again != private || err != nil {
		t.Errorf("a second mount at %s, %v, the first one at %s", again, err, private)
	}
	if after, err := os.ReadFile("/proc/self/mountinfo"); string(after) != string(before) || err != nil {
		t.Errorf("%v, mounts are\n%s\nand were\n%s", err, after, before)
	}
}
