// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"smcr/internal/testing/testkind"
)

// TestGuard: a stack whose directory was removed is still the only one of the network namespace,
// until its process ends. Names that other users bind do not count.
func TestGuard(t *testing.T) {
	root, _ := users(t)
	prefix, err := guardPrefix(root.root)
	if err != nil {
		t.Fatal(err)
	}
	me, err := self()
	if err != nil {
		t.Fatal(err)
	}
	living := me
	living.pid = uint64(os.Getppid())
	th, err := readThread(fmt.Sprint("/proc/", living.pid))
	if err != nil {
		t.Fatal(err)
	}
	living.start = th.start
	dead := living
	dead.start++ // another process had the number
	for _, tt := range []struct {
		name string
		of   holder
		user int
		lost bool
	}{
		{"a stack of root", living, 0, true},
		{"a process that has ended", dead, 0, false},
		{"another user", living, other, false},
		{"this process", me, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var f *os.File
			bind := func() { f, err = bindGuard(prefix, guardSuffix(root.root), tt.of) }
			if tt.user != 0 {
				as(t, tt.user, bind)
			} else {
				bind()
			}
			if err != nil {
				t.Fatal(err)
			}
			c, err := root.take()
			want, ok := errors.AsType[*LostError](err)
			switch {
			case tt.lost && (!ok || want.PID != int(living.pid)):
				t.Errorf("%v, want a *LostError of process %d", err, living.pid)
			case !tt.lost && err != nil:
				t.Errorf("%v", err)
			}
			if err == nil {
				_ = c.Close()
			}
			_ = f.Close()
			if c, err = root.take(); err != nil {
				t.Fatalf("after the end of the other process: %v", err)
			}
			_ = c.Close()
		})
	}
	// The guard of a claim goes with it, also if its directory was removed meanwhile.
	c, err := root.take()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Dir(c.dir)); err != nil {
		t.Fatal(err)
	}
	bound := func() (n int) {
		all, err := unixSockets()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if string(s.name[:min(len(s.name), len(prefix))]) == prefix {
				n++
			}
		}
		return n
	}
	if n := bound(); n != 1 {
		t.Errorf("%d guards of a claim", n)
	}
	_ = c.Close()
	if n := bound(); n != 0 {
		t.Errorf("%d guards after its end", n)
	}
}

// TestMain checks that no test leaves a guard: the next directory may have the same number as the one
// that it was for.
func TestMain(m *testing.M) {
	if root := os.Getenv(lookEnv); root != "" {
		lookAt(root)
		return
	}
	debug.SetGCPercent(-1) // the collector closes files, so that the check would find only some
	status := m.Run()
	if os.Getenv(stackEnv) == "" {
		all, err := unixSockets()
		if err != nil {
			fmt.Println("FAIL:", err)
			status = 1
		}
		for _, s := range all {
			if name := string(s.name); strings.HasPrefix(name, "\x00smcr.stack/") && strings.Contains(name, fmt.Sprintf("/%d/", os.Getpid())) {
				fmt.Printf("FAIL: a guard is left: %q\n", name)
				status = 1
			}
		}
	}
	os.Exit(status)
}

// TestGuardElsewhere: two mount namespaces of one network namespace can have a /run each, but one stack. A directory with another
// name is that of another user, or of a test.
func TestGuardElsewhere(t *testing.T) {
	testkind.System(t)
	v := newView(t)
	c, err := v.take()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Part(); err != nil {
		t.Fatal(err)
	}
	other := newView(t)
	if c, err := other.take(); err != nil {
		t.Errorf("at a directory of another name: %v", err)
	} else {
		_ = c.Close()
	}
	old := v.root + ".old"
	if err := errors.Join(os.Rename(v.root, old), os.Mkdir(v.root, 0o755)); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(old)
	// It must be a process of its own that looks.
	look := func() string {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), lookEnv+"="+v.root)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if got, want := look(), fmt.Sprintf("the stack of this network namespace is process %d, and its %s is not the one here", os.Getpid(), filepath.Join(v.root, dirName)); !strings.HasPrefix(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if got := look(); got != "taken" {
		t.Errorf("after its end: %q", got)
	}
}

// lookEnv has this program take the place below a directory.
const lookEnv = "SMCR_PLACE_TEST_LOOK"

func lookAt(root string) {
	v := &view{root: root, own: root, uid: uint32(os.Geteuid()), cookie: 42, ino: 7}
	c, err := v.take()
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("taken")
	_ = c.Close()
}

// TestRemovedEnd: the end of a stack whose directory was removed is none that fails, and removes nothing of the next one.
func TestRemovedEnd(t *testing.T) {
	testkind.System(t)
	v := newView(t)
	c, err := v.take()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Part(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(v.root, dirName)); err != nil {
		t.Fatal(err)
	}
	// The files of the next stack.
	if err := v.makeDirs(v.root); err != nil {
		t.Fatal(err)
	}
	next, err := takePart(c.dir, c.partN)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Errorf("the end of the first one: %v", err)
	}
	if !named(next, partName(c.dir, c.partN)) {
		t.Error("the file of the next stack is not there any more")
	}
	if err := removePart(c.dir, c.partN, next); err != nil {
		t.Error(err)
	}
}
