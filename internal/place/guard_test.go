// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
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
			bind := func() { f, err = bindGuard(prefix, tt.of) }
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
