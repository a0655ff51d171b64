// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// architectures are those of the archives, as Go and as ELF names them.
var architectures = []struct {
	name    string
	machine elf.Machine
	order   elf.Data
}{
	{"amd64", elf.EM_X86_64, elf.ELFDATA2LSB},
	{"arm64", elf.EM_AARCH64, elf.ELFDATA2LSB},
	{"s390x", elf.EM_S390, elf.ELFDATA2MSB},
	{"ppc64le", elf.EM_PPC64, elf.ELFDATA2LSB},
}

// TestDist makes the archives. Each has a static program of its architecture, and a bill of
// materials with the modules in the program. The archive of amd64 works where it is unpacked.
func TestDist(t *testing.T) {
	need(t, "make", "git", "sha256sum", "tar", "dpkg-deb", "rpm")
	env := []string{"PACKAGE_VERSION=" + older, "SOURCE_DATE_EPOCH=" + epoch}
	dist := t.TempDir()
	runMake(t, root, env, "dist", "DIST="+dist, "VERSION=v"+older)

	wantDistFiles(t, dist)
	modules := linkedModules(t)
	for _, arch := range architectures {
		name := "smcr-" + older + "-linux-" + arch.name
		files := readArchive(t, filepath.Join(dist, name+".tar.gz"))
		checkELF(t, arch.name, files[name+"/bin/smcr"], arch.machine, arch.order)
		for _, want := range []string{
			"bin/smcr", "bin/smcss", "bin/smc_pnet", "share/man/man8/smcr.8", "share/man/man5/smcr.yaml.5",
			"share/bash-completion/completions/smcr", "share/zsh/site-functions/_smcr", "share/fish/vendor_completions.d/smcr.fish",
			"lib/systemd/system/smcr.service", "lib/sysusers.d/smcr.conf", "share/doc/smcr/LICENSES", "share/doc/smcr/README.md",
			"share/doc/smcr/docs/performance.md", "share/doc/smcr/deploy/README.md", "share/smcr/prometheus/smcr.rules.yaml",
		} {
			if _, ok := files[name+"/"+want]; !ok {
				t.Errorf("%s has no file %s", name, want)
			}
		}
		checkBill(t, filepath.Join(dist, name+".cdx.json"), modules)
	}
	runArchive(t, filepath.Join(dist, "smcr-"+older+"-linux-amd64.tar.gz"))

	// Packages for other architectures, whose names are others than those of Go.
	runMake(t, root, env, "deb", "ARCH=ppc64le", "DIST="+dist, "VERSION=v"+older)
	if got := strings.TrimSpace(output(t, "dpkg-deb", "--field", filepath.Join(dist, "smcr_"+older+"-1_ppc64el.deb"), "Architecture")); got != "ppc64el" {
		t.Errorf("the Debian package is for %q", got)
	}
	runMake(t, root, env, "rpm", "ARCH=arm64", "DIST="+dist, "VERSION=v"+older)
	if got := output(t, "rpm", "-q", "-p", "--nosignature", "--qf", "%{ARCH} %{OS}", filepath.Join(dist, "smcr-"+older+"-1.aarch64.rpm")); got != "aarch64 linux" {
		t.Errorf("the RPM is for %q", got)
	}
}

// wantDistFiles checks which files make dist has made, and their checksums as a user does.
func wantDistFiles(t *testing.T, dist string) {
	t.Helper()
	entries, err := os.ReadDir(dist)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	want := []string{"SHA256SUMS"}
	for _, arch := range architectures {
		want = append(want, "smcr-"+older+"-linux-"+arch.name+".tar.gz", "smcr-"+older+"-linux-"+arch.name+".cdx.json")
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("make dist made %q, want %q", got, want)
	}
	out := output(t, "sh", "-c", `cd "$0" && sha256sum --strict -c SHA256SUMS`, dist)
	if n := strings.Count(out, ": OK\n"); n != len(want)-1 {
		t.Errorf("%d of %d checksums are right:\n%s", n, len(want)-1, out)
	}
}

// readArchive returns the files of an archive by their names, and checks that owners and times
// are not those of the build.
func readArchive(t *testing.T, file string) map[string][]byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Uid != 0 || h.Gid != 0 || fmt.Sprint(h.ModTime.Unix()) != epoch || h.Typeflag != tar.TypeSymlink && h.Mode&0o022 != 0 {
			t.Errorf("%s: %s of %d:%d, mode %o, of %v", filepath.Base(file), h.Name, h.Uid, h.Gid, h.Mode, h.ModTime)
		}
		if files[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// checkELF checks that a program is static and for its machine.
func checkELF(t *testing.T, arch string, program []byte, machine elf.Machine, order elf.Data) {
	t.Helper()
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		t.Errorf("%s: %v", arch, err)
		return
	}
	if f.Machine != machine || f.Data != order || f.Class != elf.ELFCLASS64 {
		t.Errorf("%s: the program is for %v, %v, %v", arch, f.Machine, f.Data, f.Class)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("%s: the program is not static: %v", arch, p.Type)
		}
	}
}

// linkedModules returns the modules in the program, as path@version.
func linkedModules(t *testing.T) []string {
	t.Helper()
	out := output(t, "env", "CGO_ENABLED=0", "go", "list", "-C", root, "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}@{{.Version}}{{end}}{{end}}", "./cmd/smcr")
	modules := strings.Fields(out)
	slices.Sort(modules)
	return slices.Compact(modules)
}

// checkBill checks that a bill of materials is one of CycloneDX, and has these modules, Go's
// standard library, and no other.
func checkBill(t *testing.T, file string, modules []string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	type component struct {
		Type, Name, Version, PURL string
		Hashes                    []struct{ Alg, Content string }
	}
	var bill struct {
		BOMFormat, SpecVersion string
		Metadata               struct {
			Timestamp string
			Component component
		}
		Components []component
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if err := d.Decode(&bill); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if bill.BOMFormat != "CycloneDX" || !strings.HasPrefix(bill.SpecVersion, "1.") || bill.Metadata.Timestamp != "" {
		t.Errorf("%s: format %q, version %q, made at %q", filepath.Base(file), bill.BOMFormat, bill.SpecVersion, bill.Metadata.Timestamp)
	}
	if c := bill.Metadata.Component; c.Name != "smcr" || c.Version != "v"+older {
		t.Errorf("%s is about %s %s", filepath.Base(file), c.Name, c.Version)
	}
	var got []string
	std := false
	for _, c := range bill.Components {
		if c.Name == "std" {
			std = true
			continue
		}
		got = append(got, c.Name+"@"+c.Version)
		if !strings.HasPrefix(c.PURL, "pkg:golang/"+c.Name+"@"+c.Version) || len(c.Hashes) == 0 {
			t.Errorf("%s: %+v has no address or no checksum", filepath.Base(file), c)
		}
	}
	slices.Sort(got)
	if !slices.Equal(got, modules) || !std {
		t.Errorf("%s: modules %q, standard library %v, want %q", filepath.Base(file), got, std, modules)
	}
}

// runArchive unpacks an archive where there is nothing else, and runs the program there.
func runArchive(t *testing.T, file string) {
	t.Helper()
	dir := t.TempDir()
	output(t, "tar", "-C", dir, "--strip-components=1", "-xzf", file)
	// There is no C library, no shell and no other file.
	for _, name := range []string{"smcr", "smcss"} {
		cmd := exec.CommandContext(t.Context(), "chroot", dir, "/bin/"+name, "--version")
		out, err := cmd.CombinedOutput()
		want := "smcr 0.1.0 (v" + older + ")\n"
		if name != "smcr" {
			want = "smcss utility, smc-tools-1.8.5\n"
		}
		if err != nil || string(out) != want {
			t.Errorf("%s --version: %v, %q, want %q", name, err, out, want)
		}
	}
}
