// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"sync"
	"time"
)

// Build compiles a main package of this module statically, so that the program also runs
// in guests. The flags are those of the other builds of the tests, which then compile nothing
// twice. The working directory must be within the module.
func Build(ctx context.Context, pkg, file string) error {
	return goCommand(ctx, "build", "-buildvcs=false", "-o", file, pkg)
}

// Program compiles a main package like Build, but once for all callers in this process.
// The file is removed at the end of the process.
func Program(ctx context.Context, pkg string) (file string, err error) {
	return programs.file(ctx, pkg)
}

var programs builds

// builds has compiled programs in a directory that a watchdog removes.
type builds struct {
	mu   sync.Mutex
	dir  string
	dog  *watchdog
	done map[string]string // the file of each package
}

func (b *builds) file(ctx context.Context, pkg string) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.dog == nil {
		dir, err := os.MkdirTemp("", fmt.Sprintf("smcr-programs-%d-", os.Getpid()))
		if err != nil {
			return "", fmt.Errorf("guest: %w", err)
		}
		dog, err := watch(dir)
		if err != nil {
			return "", errors.Join(err, os.RemoveAll(dir))
		}
		b.dir, b.dog, b.done = dir, dog, make(map[string]string)
	}
	file, ok := b.done[pkg]
	if !ok {
		file = filepath.Join(b.dir, fmt.Sprint(len(b.done)), path.Base(pkg))
		if err := Build(ctx, pkg, file); err != nil {
			return "", err
		}
		b.done[pkg] = file
	}
	return file, nil
}

// BuildTest compiles the tests of a package of this module like Build. In a guest, they
// can test what needs the kernel of the guest.
func BuildTest(ctx context.Context, pkg, file string) error {
	return goCommand(ctx, "test", "-c", "-buildvcs=false", "-o", file, pkg)
}

func goCommand(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("guest: go %s: %w\n%s", args[0], err, out)
	}
	return nil
}
