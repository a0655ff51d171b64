// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// The two releases of the tests. The second one is of the same commit, with another program and
// another default configuration.
const (
	older = "1.0.0~5.gabc"
	newer = "1.0.0"
)

// epoch is the time of the files in packages and archives of the tests.
const epoch = "1700000000"

// newDefault is a line that the configuration of the newer release has.
const newDefault = "# New in this release.\n"

// builds are the packages that the tests have built, by what make was called with.
type builds struct {
	mu   sync.Mutex
	dir  string
	made map[string]string
}

var built builds

func (b *builds) remove() error {
	if b.dir == "" {
		return nil
	}
	return os.RemoveAll(b.dir)
}

// pack returns the file of a package, deb or rpm, of a version.
func pack(t *testing.T, format, version string) string {
	t.Helper()
	b := &built
	b.mu.Lock()
	defer b.mu.Unlock()
	if file := b.made[format+version]; file != "" {
		return file
	}
	var err error
	if b.dir == "" {
		if b.dir, err = os.MkdirTemp("", "smcr-packages-built-"); err != nil {
			t.Fatal(err)
		}
		b.made = map[string]string{}
	}
	dist := filepath.Join(b.dir, format+version)
	config, err := os.ReadFile(filepath.Join(root, "deploy/packages/smcr.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if version == newer {
		config = append(config, newDefault...)
	}
	file := filepath.Join(b.dir, "smcr.yaml")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		t.Fatal(err)
	}
	runMake(t, root, []string{"PACKAGE_CONFIG=" + file, "PACKAGE_VERSION=" + version, "SOURCE_DATE_EPOCH=" + epoch}, format, "DIST="+dist, "VERSION=v"+version)
	files, err := filepath.Glob(filepath.Join(dist, "*."+format))
	if err != nil || len(files) != 1 {
		t.Fatalf("make %s made %q (%v), want one file", format, files, err)
	}
	b.made[format+version] = files[0]
	return files[0]
}

// runMake runs make in a folder, as on the command line.
func runMake(t *testing.T, dir string, env []string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), buildTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "make", append([]string{"-C", dir}, args...)...)
	// The variables of a make that runs this test are not for this one.
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); name != "MAKEFLAGS" && name != "MFLAGS" && name != "MAKEOVERRIDES" && name != "VERSION" {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make %s: %v\n%s", strings.Join(args, " "), errors.Join(err, ctx.Err()), tail(string(out)))
	}
}

// output runs a program of this computer and returns its standard output.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	out, err := cmd.Output()
	if err != nil {
		var said string
		if ee, ok := errors.AsType[*exec.ExitError](err); ok {
			said = string(ee.Stderr)
		}
		t.Fatal(fmt.Errorf("%s %s: %w: %s%s", name, strings.Join(args, " "), err, said, tail(string(out))))
	}
	return string(out)
}
