// SPDX-License-Identifier: Apache-2.0

package services

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"smcr/internal/config"
)

// TestEnableMoves: what an earlier release has written into the configuration file moves to the drop-in file, and nothing else of it changes.
func TestEnableMoves(t *testing.T) {
	for _, test := range []struct {
		name, main, after string
		moves             bool
	}{
		{"nothing else", entryA, "", true},
		{"beside others", "# mine\nueids:\n  - X # known\n" + entryA + "  - cgroup: /b\n", "# mine\nueids:\n  - X # known\nprograms:\n  - cgroup: /b\n", true},
		{"with a comment", "programs:\n  - cgroup: " + cgroupA + " # mine\n", "", false},
		{"below a comment", "programs:\n  # mine\n  - cgroup: " + cgroupA + "\n", "", false},
		{"with settings", "programs:\n  - cgroup: " + cgroupA + "\n    accept: false\n", "", false},
		{"in another form", "programs: [{cgroup: " + cgroupA + "}]\n", "", false},
		{"not at all", "# mine\n", "# mine\n", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBed(t)
			b.unit("a.service")
			b.configure(test.main, nil)
			for range 2 {
				b.must("enable", "a")
				if !test.moves {
					b.want("", cgroupA)
					continue
				}
				b.main = test.after
				b.want(entryA, cgroupA)
			}
		})
	}
}

// TestDisableEverywhere: disable removes the entries of a unit from all files, with whatever they say, and keeps all else.
func TestDisableEverywhere(t *testing.T) {
	b := newBed(t)
	b.unit("a.service")
	b.configure("# mine\nprograms:\n  # the first\n  - cgroup: "+cgroupA+"\n    accept: false\n  - cgroup: /b # mine\n", map[string]string{
		"10-x.yaml": "ueids: [X]\nprograms:\n  - cgroup: " + cgroupA + "\n",
		ownName:     ownHead + entryA + "  - cgroup: /c\n",
		"60-y.yaml": "programs:\n  - cgroup: /d\n",
	})
	b.must("disable", "a")
	b.main = "# mine\nprograms:\n  # the first\n  - cgroup: /b # mine\n"
	b.want("programs:\n  - cgroup: /c\n")
	for name, want := range map[string]string{"10-x.yaml": "ueids: [X]\n", "60-y.yaml": "programs:\n  - cgroup: /d\n"} {
		if text, err := os.ReadFile(filepath.Join(config.DropIns(b.conf), name)); err != nil || string(text) != want {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
	}
	if out := b.out.String(); !strings.Contains(out, "smcr.yaml:\n- ") || !strings.Contains(out, "10-x.yaml:\n- ") || strings.Contains(out, "60-y") {
		t.Errorf("it printed\n%s", out)
	}
	// If one of them cannot be changed, none is.
	all := map[string]string{"10-x.yaml": entryA, ownName: ownHead + entryA, "60-y.yaml": "programs: [{cgroup: " + cgroupA + "}]\n"}
	b.configure(entryA, all)
	if err := b.run("disable", "a"); !errors.Is(err, config.ErrByHand) || !strings.Contains(err.Error(), "60-y.yaml: nothing was changed") {
		t.Error(err)
	}
	b.want(entryA)
	if text, err := os.ReadFile(filepath.Join(config.DropIns(b.conf), "10-x.yaml")); err != nil || string(text) != entryA {
		t.Errorf("%v\n%s", err, text)
	}
}

// TestOwnFileElsewhere: a link stays one, and its target a valid file.
func TestOwnFileElsewhere(t *testing.T) {
	b := newBed(t)
	b.unit("a.service")
	b.configure("", nil)
	b.write("elsewhere", "")
	if err := os.Symlink(filepath.Join(b.dir, "elsewhere"), ownFile(b.conf)); err != nil {
		t.Fatal(err)
	}
	b.must("enable", "a")
	b.must("disable", "a")
	if info, err := os.Lstat(ownFile(b.conf)); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("%v, %v", info, err)
	}
	if _, err := config.Load(b.conf); err != nil {
		t.Error(err)
	}
}

// TestDirectoriesCanBeRead: the user of the stack reads the file, whatever the umask of the administrator is.
func TestDirectoriesCanBeRead(t *testing.T) {
	b := newBed(t)
	b.unit("a.service")
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	b.must("enable", "a")
	for _, dir := range []string{config.DropIns(b.conf), filepath.Dir(b.conf)} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: %v, %v", dir, info.Mode(), err)
		}
	}
	if info, err := os.Stat(ownFile(b.conf)); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}
