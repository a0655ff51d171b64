// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// smcToolsFiles are the paths at which smc-tools 1.8.5 installs files with `make install`, on
// IBM Z, where it has most. Debian compresses the manual pages.
var smcToolsFiles = []string{
	"usr/bin/smcd", "usr/bin/smcr", "usr/bin/smcss", "usr/bin/smc_pnet", "usr/bin/smc_run",
	"usr/bin/smc_rnics", "usr/bin/smc_chk", "usr/bin/smc_dbg",
	"usr/lib/libsmc-preload.so",
	"usr/share/man/man7/af_smc.7.gz",
	"usr/share/man/man8/smc_run.8.gz", "usr/share/man/man8/smc_pnet.8.gz", "usr/share/man/man8/smcss.8.gz",
	"usr/share/man/man8/smc_rnics.8.gz", "usr/share/man/man8/smc_chk.8.gz", "usr/share/man/man8/smc_dbg.8.gz",
	"usr/share/man/man8/smcd.8.gz", "usr/share/man/man8/smcr.8.gz",
	"usr/share/man/man8/smcd-linkgroup.8.gz", "usr/share/man/man8/smcd-device.8.gz", "usr/share/man/man8/smcd-info.8.gz",
	"usr/share/man/man8/smcd-stats.8.gz", "usr/share/man/man8/smcd-ueid.8.gz", "usr/share/man/man8/smcd-seid.8.gz",
	"usr/share/man/man8/smcr-linkgroup.8.gz", "usr/share/man/man8/smcr-device.8.gz", "usr/share/man/man8/smcr-info.8.gz",
	"usr/share/man/man8/smcr-stats.8.gz", "usr/share/man/man8/smcr-ueid.8.gz",
	"usr/share/bash-completion/completions/smc-tools", "usr/share/bash-completion/completions/smc_rnics",
	"usr/share/bash-completion/completions/smc_chk", "usr/share/bash-completion/completions/smc_dbg",
	"usr/share/bash-completion/completions/smcss", "usr/share/bash-completion/completions/smc_pnet",
	"usr/share/bash-completion/completions/smc",
}

// smcToolsPackage makes a package with the name and the paths of smc-tools, which Debian 12 does
// not have for amd64. The files are not those of smc-tools: what counts is where they are.
func smcToolsPackage(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		b.WriteString(text)
		if strings.HasSuffix(name, ".gz") {
			b.Reset()
			w := gzip.NewWriter(&b)
			if _, err := w.Write([]byte(text)); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(path, []byte(b.String()), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range smcToolsFiles {
		write(name, "#!/bin/sh\necho smc-tools "+filepath.Base(name)+"\n", 0o755)
	}
	arch := strings.TrimSpace(output(t, "dpkg", "--print-architecture"))
	write("DEBIAN/control", fmt.Sprintf("Package: smc-tools\nVersion: 1.8.5-1\nArchitecture: %s\nMaintainer: nobody <nobody@localhost>\nDescription: paths of smc-tools\n", arch), 0o644)
	// md5sums let dpkg -V find out whether another package has changed a file.
	output(t, "sh", "-c", `cd "$0" && find usr -type f -exec md5sum {} + >DEBIAN/md5sums`, dir)
	file := filepath.Join(t.TempDir(), "smc-tools.deb")
	output(t, "dpkg-deb", "--root-owner-group", "-Zgzip", "--build", dir, file)
	return file
}

// TestSMCTools installs the Debian package and smc-tools beside each other, in both orders. No
// file of smc-tools is changed or removed by this package, and this one works. After the removal
// of smc-tools, the names are those of this package.
func TestSMCTools(t *testing.T) {
	need(t, debTools...)
	m := boot(t, "chroot")
	a, _ := m.hosts()
	ours, theirs := m.put(pack(t, "deb", older)), m.put(smcToolsPackage(t))
	newer := m.put(pack(t, "deb", newer))
	// step runs dpkg, and wants the names to be of smc-tools or of this package after it.
	step := func(dpkg string, wantTheirs bool) {
		t.Helper()
		a.must("dpkg " + dpkg)
		if !wantTheirs {
			wantNames(a)
			return
		}
		if out := a.must("dpkg -V smc-tools"); out != "" {
			t.Errorf("after dpkg %s, files of smc-tools are changed:\n%s", dpkg, out)
		}
		for _, name := range toolNames {
			if out := a.must(name); out != "smc-tools "+name {
				t.Errorf("after dpkg %s, %s prints %q", dpkg, name, out)
			}
		}
		if out, err := a.try("test ! -e " + programPath + " || " + programPath + " --version"); err != nil {
			t.Errorf("after dpkg %s: %v: %s", dpkg, err, out)
		}
	}
	before := m.list()
	step("-i "+theirs, true)
	step("-i "+ours, true)
	step("-i "+newer, true)
	step("-r smc-tools", false)
	step("-i "+theirs, true)
	step("-r smcr", true)
	step("-i "+ours, true)
	step("-P smcr", true)
	step("-i "+ours, true)
	step("-r smc-tools", false)
	a.must("dpkg -P smcr")
	m.list().wantSame(t, before)
}
