// SPDX-License-Identifier: Apache-2.0

package ours

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestProcess(t *testing.T) {
	for _, test := range []struct{ comm, argv, want string }{
		{"smcr", "/usr/local/bin/smcr exporter", "smcr exporter"},
		{"smcr", "/usr/libexec/smcr/smcr serve --takeover", "smcr serve"},
		{"smcr", "smcr --backend kernel check hostA:80", "smcr check"},
		{"smcr", "bin/smcr", "smcr"},
		{"nginx", "nginx -g x", ""},
		{"smcr", "", ""},
		{"smcr", "/usr/bin/python3 smcr exporter", ""},
		{"python3", "smcr exporter", ""},
		{"nginx", "/usr/bin/smcr run -- nginx", ""},
	} {
		if got := Process(test.comm, strings.Fields(test.argv)); got != test.want {
			t.Errorf("%s %q: %q, want %q", test.comm, test.argv, got, test.want)
		}
	}
}

// TestUnits: all units in deploy are ours, and no other.
func TestUnits(t *testing.T) {
	files, err := filepath.Glob("../../deploy/systemd/*.*")
	if err != nil || len(files) < 6 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if name := filepath.Base(f); !strings.HasSuffix(name, ".conf") && !Unit(name) {
			t.Errorf("%s is not known", name)
		}
	}
	for name, want := range map[string]bool{
		"smcr@blue.service": true, "system-smcr.slice": true, "smcr-exporter.service": true, "smcr-run.socket": true,
		"smcrx.service": false, "smcr.slice": false, "nginx.service": false, "smcr": false, "": false, "my-smcr.service": false,
	} {
		if Unit(name) != want {
			t.Errorf("%s: %t", name, !want)
		}
	}
	if !Runs("smcr-mine.service", []string{"/opt/smcr"}) || Runs("mine.service", []string{"/opt/smcr"}) || Runs("smcr-mine.service", []string{"/bin/true"}) {
		t.Error("units of an administrator")
	}
}
