// SPDX-License-Identifier: Apache-2.0

package suites

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// prepareTime bounds the download and the build of a suite.
const prepareTime = 30 * time.Minute

// CacheDir returns the folder for sources and builds: smcr/suites in the user's cache.
func CacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("suites: %w", err)
	}
	return filepath.Join(dir, "smcr", "suites"), nil
}

// MissingError names the Debian packages that a suite needs.
type MissingError struct{ Packages []string }

func (e *MissingError) Error() string {
	return "missing packages, install them with scripts/setup-test-tools suites, or apt-get install " + strings.Join(e.Packages, " ")
}

// missing returns a [MissingError] if packages of the suite are not installed.
func (s *Suite) missing() error {
	var names []string
	for _, p := range s.Packages {
		if _, err := os.Stat(p.File); err != nil {
			names = append(names, p.Name)
		}
	}
	if names != nil {
		return &MissingError{names}
	}
	return nil
}

// prepare returns the folder of the suite in the cache, with the built tests. What is there
// from an earlier run is used again if the script of the build is the same.
func (s *Suite) prepare(ctx context.Context, cache string) (string, error) {
	if err := s.missing(); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, prepareTime)
	defer cancel()
	dir := filepath.Join(cache, s.Name)
	stamp := filepath.Join(dir, "built")
	if b, err := os.ReadFile(stamp); err == nil && string(b) == s.Source+"\n"+s.Build {
		return filepath.Join(dir, "source"), nil
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return "", err
	}
	source := filepath.Join(dir, "source")
	if s.Source == "" {
		if err := os.Mkdir(source, 0o755); err != nil {
			return "", err
		}
	} else if err := download(ctx, cache, s.Source, dir); err != nil {
		return "", err
	}
	if s.Build != "" {
		cmd := exec.CommandContext(ctx, "sh", "-ec", s.Build)
		cmd.Dir = source
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", s.Name, err, out[max(0, len(out)-3000):])
		}
	}
	// Some jobs run as another user.
	if err := filepath.WalkDir(source, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink != 0 {
			return err
		}
		return os.Chmod(name, 0o777)
	}); err != nil {
		return "", err
	}
	return source, os.WriteFile(stamp, []byte(s.Source+"\n"+s.Build), 0o644)
}

// download gets a source package of Debian and unpacks it as DIR/source. apt keeps lists and
// files of its own in the cache, so the lists of the machine need no deb-src and stay as they
// are.
func download(ctx context.Context, cache, source, dir string) error {
	apt := filepath.Join(cache, "apt")
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(apt, d), 0o755); err != nil {
			return err
		}
	}
	lists := filepath.Join(apt, "sources.list")
	const sources = "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main\n"
	if err := os.WriteFile(lists, []byte(sources), 0o644); err != nil {
		return err
	}
	run := func(argv ...string) error {
		argv = append([]string{
			"-qq", "-o", "Dir::Etc::SourceList=" + lists, "-o", "Dir::Etc::SourceParts=/dev/null",
			"-o", "Dir::State::Lists=" + filepath.Join(apt, "lists"), "-o", "Dir::Cache=" + filepath.Join(apt, "cache"),
			"-o", "APT::Sandbox::User=root",
		}, argv...)
		cmd := exec.CommandContext(ctx, "apt-get", argv...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("source package %s: %w\n%s", source, err, out[max(0, len(out)-2000):])
		}
		return nil
	}
	if err := run("update"); err != nil {
		return err
	}
	if err := run("source", source); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			return os.Rename(filepath.Join(dir, e.Name()), filepath.Join(dir, "source"))
		}
	}
	return fmt.Errorf("source package %s: apt-get source has made no folder", source)
}
