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

// kernelSuite is the Debian release whose own kernel is of the series.
const kernelSuite = "trixie"

// keyring of Debian's releases, the future one included.
const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// An aptSource is where the machine takes its packages from.
type aptSource struct {
	uri, suite string
}

// kernelSources derives from the machine's own sources those that may have a
// kernel of the series: the same mirrors, with other suites. The input is what
// apt-get indextargets says, a line "URI SUITE COMPONENT" each.
func kernelSources(targets string) []aptSource {
	var all []aptSource
	for line := range strings.Lines(targets) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "main" || strings.ContainsAny(f[1], "-/") {
			continue // security, updates, backports; flat repositories
		}
		for _, suite := range []string{kernelSuite, f[1] + "-backports"} {
			if s := (aptSource{f[0], suite}); !slices.Contains(all, s) {
				all = append(all, s)
			}
		}
	}
	return all
}

// downloadKernel finds the newest kernel of the series, downloads and unpacks
// it below dir.
func downloadKernel(ctx context.Context, dir string) (Kernel, error) {
	if err := needPrograms("apt-get", "apt-cache", "dpkg", "depmod"); err != nil {
		return Kernel{}, err
	}
	targets, err := command(ctx, dir, "apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages")
	if err != nil {
		return Kernel{}, err
	}
	sources := kernelSources(targets)
	if len(sources) == 0 {
		return Kernel{}, errors.New("apt has no source of Debian packages")
	}
	var errs []error
	for _, s := range sources {
		k, err := downloadFrom(ctx, dir, s)
		if err == nil {
			return k, nil
		}
		errs = append(errs, fmt.Errorf("suite %s: %w", s.suite, err))
	}
	return Kernel{}, errors.Join(errs...)
}

// downloadFrom tries one source. apt works with package lists of its own, so
// that nothing changes for the machine; it checks signatures as ever.
func downloadFrom(ctx context.Context, dir string, s aptSource) (Kernel, error) {
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
	if err := os.WriteFile(list, fmt.Appendf(nil, "deb [%s] %s %s main\n", options, s.uri, s.suite), 0o600); err != nil {
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
	names, err := apt("apt-cache", "pkgnames", prefix+kernelSeries)
	if err != nil {
		return Kernel{}, err
	}
	version, ok := newest(strings.Fields(strings.ReplaceAll(names, prefix, "")))
	if !ok {
		return Kernel{}, fmt.Errorf("no package %s%s.*-amd64", prefix, kernelSeries)
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

// unpackKernel brings a kernel's package into the form of the cache.
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
	// Packages of a release with a merged /usr, or of one without.
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

// sbin is where Debian has programs that not every user has in the PATH.
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

// userInfo is the part of a URL that must not get into a log.
var userInfo = regexp.MustCompile(`://[^@/\s]+@`)

// command runs a program of the host in dir and returns its output; what it
// says about its failure is in the error.
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
