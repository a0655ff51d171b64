// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// keyring has the keys of Debian's releases, also of the next one.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// An aptSource is a source of packages.
type aptSource struct {
	uri, suite string
}

// sources returns the sources that may have a kernel of the series: the mirrors of
// this machine with other suites. The input is the output of apt-get indextargets, a line
// "URI SUITE COMPONENT" for each source.
func (s Series) sources(targets string) []aptSource {
	var all []aptSource
	for line := range strings.Lines(targets) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "main" || strings.ContainsAny(f[1], "-/") {
			continue // security, updates, backports, and flat repositories
		}
		for _, suite := range []string{s.suite, f[1] + "-backports"} {
			if a := (aptSource{f[0], suite}); !slices.Contains(all, a) {
				all = append(all, a)
			}
		}
	}
	return all
}

// download finds the newest kernel of the series, downloads it, and unpacks it in a
// directory below dir.
func (s Series) download(ctx context.Context, dir string) (Kernel, error) {
	if err := needPrograms("apt-get", "apt-cache", "dpkg", "depmod"); err != nil {
		return Kernel{}, err
	}
	targets, err := command(ctx, dir, "apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages")
	if err != nil {
		return Kernel{}, err
	}
	sources := s.sources(targets)
	if len(sources) == 0 {
		return Kernel{}, errors.New("apt has no source of Debian packages")
	}
	var errs []error
	for _, from := range sources {
		k, err := s.downloadFrom(ctx, dir, from)
		if err == nil {
			return k, nil
		}
		errs = append(errs, fmt.Errorf("suite %s: %w", from.suite, err))
	}
	return Kernel{}, errors.Join(errs...)
}

// downloadFrom tries one source. apt uses separate package lists, so the machine does not
// change. It checks signatures.
func (s Series) downloadFrom(ctx context.Context, dir string, from aptSource) (Kernel, error) {
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return Kernel{}, err
		}
	}
	options := "arch=amd64"
	if _, err := os.Stat(keyring); err == nil {
		options += " signed-by=" + keyring
	}
	list := filepath.Join(dir, "sources.list")
	if err := os.WriteFile(list, fmt.Appendf(nil, "deb [%s] %s %s main\n", options, from.uri, from.suite), 0o600); err != nil {
		return Kernel{}, err
	}
	apt := func(args ...string) (string, error) {
		args = append(args[:1:1], append([]string{
			"-o", "Dir::Etc::SourceList=" + list, "-o", "Dir::Etc::SourceParts=-",
			"-o", "Dir::State::Lists=" + filepath.Join(dir, "lists"), "-o", "Dir::Cache=" + filepath.Join(dir, "cache"),
			"-o", "APT::Sandbox::User=", "-o", "Acquire::Languages=none", "-o", "Acquire::Retries=2", "-qq",
		}, args[1:]...)...)
		return command(ctx, dir, args...)
	}
	if _, err := apt("apt-get", "update"); err != nil {
		return Kernel{}, err
	}
	const prefix = "linux-image-"
	names, err := apt("apt-cache", "pkgnames", prefix+s.name)
	if err != nil {
		return Kernel{}, err
	}
	version, ok := s.newest(strings.Fields(strings.ReplaceAll(names, prefix, "")))
	if !ok {
		return Kernel{}, fmt.Errorf("no package %s%s.*-amd64", prefix, s.name)
	}
	if _, err := apt("apt-get", "download", prefix+version); err != nil {
		return Kernel{}, err
	}
	packages, err := filepath.Glob(filepath.Join(dir, prefix+"*.deb"))
	if err != nil || len(packages) != 1 {
		return Kernel{}, fmt.Errorf("apt-get download left %q: %w", packages, errors.Join(err))
	}
	return unpackKernel(ctx, dir, packages[0], version)
}

// unpackKernel unpacks the package of a kernel into the form of the cache.
func unpackKernel(ctx context.Context, dir, file, version string) (Kernel, error) {
	raw := filepath.Join(dir, "raw")
	k := Kernel{Version: version, dir: filepath.Join(dir, "kernel")}
	if _, err := command(ctx, dir, "dpkg", "-x", file, raw); err != nil {
		return Kernel{}, err
	}
	if err := os.MkdirAll(filepath.Dir(k.modules()), 0o755); err != nil {
		return Kernel{}, err
	}
	if err := os.Rename(filepath.Join(raw, "boot/vmlinuz-"+version), k.image()); err != nil {
		return Kernel{}, err
	}
	// The package is of a release with a merged /usr, or of one without.
	err := os.Rename(filepath.Join(raw, "usr/lib/modules", version), k.modules())
	if errors.Is(err, os.ErrNotExist) {
		err = os.Rename(filepath.Join(raw, "lib/modules", version), k.modules())
	}
	if err != nil {
		return Kernel{}, err
	}
	_, err = command(ctx, dir, "depmod", "-b", k.dir, version)
	return k, err
}

// sbin are the directories of Debian that not every user has in PATH.
var sbin = []string{"/usr/local/sbin", "/usr/sbin", "/sbin"}

// findProgram returns the path of a program.
func findProgram(name string) (string, error) {
	path, err := exec.LookPath(name)
	for _, d := range sbin {
		if err == nil {
			break
		}
		path, err = exec.LookPath(filepath.Join(d, name))
	}
	return path, err
}

func needPrograms(names ...string) error {
	var missing []string
	for _, n := range names {
		if _, err := findProgram(n); err != nil {
			missing = append(missing, n)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("missing: %s (on Debian: sudo scripts/setup-test-tools)", strings.Join(missing, ", "))
	}
	return nil
}

// userInfo matches the part of a URL that must not be logged.
var userInfo = regexp.MustCompile(`://[^@/\s]+@`)

// command runs a program of the host in dir and returns its output. If it fails, the
// error has its messages.
func command(ctx context.Context, dir string, argv ...string) (string, error) {
	path, err := findProgram(argv[0])
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, path, argv[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		said := userInfo.ReplaceAllString(strings.TrimSpace(stderr.String()), "://")
		return "", fmt.Errorf("%s: %w: %s", argv[0], errors.Join(err, ctx.Err()), said)
	}
	return stdout.String(), nil
}
