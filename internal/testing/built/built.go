// SPDX-License-Identifier: Apache-2.0

package built

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Programs builds programs, by their import paths, and copies them into a directory.
func Programs(ctx context.Context, dir string, paths ...string) error {
	return programs(ctx, dir, "built", []string{"CGO_ENABLED=0"}, nil, paths)
}

// WithRaceDetector is [Programs] for programs with the race detector.
func WithRaceDetector(ctx context.Context, dir string, paths ...string) error {
	return programs(ctx, dir, "built-race", []string{"CGO_ENABLED=1"}, []string{"-race"}, paths)
}

func programs(ctx context.Context, dir, name string, env, flags, paths []string) error {
	module, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("built: go env: %w", err)
	}
	kept := filepath.Join(filepath.Dir(strings.TrimSpace(string(module))), "bin", name)
	if err := os.MkdirAll(kept, 0o755); err != nil {
		return fmt.Errorf("built: %w", err)
	}
	// Packages that are tested at the same time wait for each other.
	lock, err := os.Open(kept)
	if err != nil {
		return fmt.Errorf("built: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("built: %w", os.NewSyscallError("flock", err))
	}
	args := append([]string{"build", "-buildvcs=false", "-o", kept + "/"}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, paths...)...)
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("built: %w\n%s", err, out)
	}
	for _, p := range paths {
		file := path.Base(p)
		if err := copyProgram(filepath.Join(dir, file), filepath.Join(kept, file)); err != nil {
			return fmt.Errorf("built: %w", err)
		}
	}
	return nil
}

func copyProgram(to, from string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}
