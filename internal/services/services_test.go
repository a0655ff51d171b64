// SPDX-License-Identifier: Apache-2.0

package services

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCat(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"plain", "ExecStart=/usr/sbin/a -b 'c d' $E %i", []string{"/usr/sbin/a -b 'c d' $E %i"}},
		{"continued", "ExecStart=/usr/sbin/a \\\n# a comment\n  -b", []string{"/usr/sbin/a    -b"}},
		{"two commands", "Type=oneshot\nExecStart=/a\nExecStart=/b", []string{"/a", "/b"}},
		{"replaced", "ExecStart=/a\n# /etc/systemd/system/x.service.d/o.conf\n[Service]\nExecStart=\nExecStart=/b", []string{"/b"}},
		{"by an earlier release", "ExecStart=/a\n# /etc/systemd/system/x.service.d/zz-smcr.conf\n[Service]\nExecStart=\nExecStart=/usr/bin/smcr run -- /a\nExecPaths=/x", []string{"/a"}},
		{"none", "Type=oneshot", nil},
	} {
		got := parseCat("# /lib/systemd/system/x.service\n[Unit]\nExecStart=/no\n[Service]\n"+c.text+"\n", "/etc/systemd/system/x.service.d/"+dropInName)
		if d := cmp.Diff(c.want, got["ExecStart"]); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}

func TestProgramOf(t *testing.T) {
	for value, want := range map[string]string{"/a -b": "/a", "-!!/usr/sbin/a": "/usr/sbin/a", `"/a" b`: "/a", "": ""} {
		if got := programOf(value); got != want {
			t.Errorf("%q: %q, want %q", value, got, want)
		}
	}
}

// FuzzCat: names of settings are words of one line.
func FuzzCat(f *testing.F) {
	f.Add("# /lib/x\n[Service]\nExecStart=/a \\\n;c\n -b\nType=forking\n")
	f.Add("[Service]\nExecStart=/a\rExecStartPre=+/b\n\\\n\\")
	f.Fuzz(func(t *testing.T, text string) {
		for name, values := range parseCat(text, "") {
			if strings.ContainsAny(name, "\n=") || len(values) == 0 || strings.Contains(strings.Join(values, ""), "\n") {
				t.Errorf("%q: %q", name, values)
			}
		}
	})
}
