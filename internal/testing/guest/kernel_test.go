// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"smcr/internal/testing/testkind"
)

func TestKernelSources(t *testing.T) {
	const targets = `http://deb.debian.org/debian/ bookworm main
http://deb.debian.org/debian/ bookworm main
http://deb.debian.org/debian/ bookworm contrib
http://deb.debian.org/debian/ bookworm-updates main
http://deb.debian.org/debian-security/ bookworm-security main
http://flat.example/ ./ main
`
	want := []aptSource{
		{"http://deb.debian.org/debian/", "trixie"},
		{"http://deb.debian.org/debian/", "bookworm-backports"},
	}
	if diff := cmp.Diff(want, WithSMC.sources(targets), cmp.AllowUnexported(aptSource{})); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
	if got := WithSMC.sources(""); got != nil {
		t.Errorf("sources of a machine without: %v", got)
	}
}

func TestNewest(t *testing.T) {
	names := []string{
		"6.12.94+deb13-amd64", "6.12.107+deb13-amd64", "6.12.107+deb13-cloud-amd64",
		"6.12.200+deb13-rt-amd64", "6.12.107+deb13-amd64-unsigned", "6.1.0-30-amd64", "lock", "tmp-1",
		"6.12.99999999999999999999+deb13-amd64",
	}
	if got, ok := WithSMC.newest(names); !ok || got != "6.12.107+deb13-amd64" {
		t.Errorf("got %q, %v", got, ok)
	}
	if got, ok := WithSMC.newest([]string{"7.2.1-amd64"}); ok {
		t.Errorf("got %q, want none", got)
	}
	if got, ok := Oldest.newest(append(names, "6.1.0-9-amd64", "6.1.0-31-cloud-amd64")); !ok || got != "6.1.0-30-amd64" {
		t.Errorf("got %q, %v", got, ok)
	}
}

func TestCachedKernel(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	dir := filepath.Join(cache, "smcr/guest/6.12.5+deb13-amd64")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	k, err := WithSMC.Find(t.Context())
	if err != nil || k.image() != filepath.Join(dir, "vmlinuz") {
		t.Errorf("got %+v, %v", k, err)
	}
}

// TestFindKernelBounded checks that others wait only a limited time for a process that
// downloads.
func TestFindKernelBounded(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	if err := os.MkdirAll(filepath.Join(cache, "smcr/guest"), 0o755); err != nil {
		t.Fatal(err)
	}
	unlock, err := lock(t.Context(), filepath.Join(cache, "smcr/guest/lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	// Real time: the deadline is what the test is about.
	ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
	defer cancel()
	if _, err := WithSMC.Find(ctx); !errors.Is(err, ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got error %v", err)
	}
}

func TestModuleOrder(t *testing.T) {
	k := Kernel{Version: "v", dir: t.TempDir()}
	if err := os.MkdirAll(k.modules(), 0o755); err != nil {
		t.Fatal(err)
	}
	const dep = `net/9p/9pnet_virtio.ko.xz: net/9p/9pnet.ko.xz fs/netfs/netfs.ko.xz
fs/9p/9p.ko.xz: net/9p/9pnet.ko.xz fs/netfs/netfs.ko.xz
fs/overlayfs/overlay.ko:
`
	if err := os.WriteFile(filepath.Join(k.modules(), "modules.dep"), []byte(dep), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := moduleOrder(k, []string{"9pnet_virtio", "9p", "overlay"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"fs/netfs/netfs.ko.xz", "net/9p/9pnet.ko.xz", "net/9p/9pnet_virtio.ko.xz", "fs/9p/9p.ko.xz", "fs/overlayfs/overlay.ko"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if _, err := moduleOrder(k, []string{"nosuch"}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("unknown module: got error %v", err)
	}
}

// TestArchive checks that cpio can read an archive. The kernel reads one in each boot.
func TestArchive(t *testing.T) {
	testkind.System(t)
	a := newArchive()
	a.add("d", modeDir, nil)
	a.add("d/file", modeFile, []byte("hello"))
	a.add("init", modeProgram, bytes.Repeat([]byte{1}, 4096))
	b := a.finish()
	if len(b)%4 != 0 || !bytes.HasPrefix(b, []byte("07070100000001000041ED")) {
		t.Errorf("%d bytes, begins %q", len(b), b[:22])
	}
	if _, err := exec.LookPath("cpio"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("cpio is not installed: sudo scripts/setup-test-tools")
	}
	cmd := exec.CommandContext(t.Context(), "cpio", "-itv", "--quiet")
	cmd.Stdin = bytes.NewReader(b)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("cpio: %v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	for i, want := range []struct{ mode, size, name string }{
		{"drwxr-xr-x", "0", "d"}, {"-rw-r--r--", "5", "d/file"}, {"-rwxr-xr-x", "4096", "init"},
	} {
		f := strings.Fields(lines[i])
		if len(lines) != 3 || f[0] != want.mode || f[4] != want.size || f[len(f)-1] != want.name {
			t.Errorf("cpio lists %q, want %+v", lines[i], want)
		}
	}
}
