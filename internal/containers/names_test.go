// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"regexp"
	"strings"
	"testing"
)

// Names as regular expressions, which say the same.
var (
	nameForm  = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,252}$`)
	idForm    = regexp.MustCompile(`^[0-9a-f]{64}$`)
	uidForm   = regexp.MustCompile(`^[0-9A-Za-z][0-9A-Za-z-]{0,63}$`)
	groupForm = regexp.MustCompile(`^(?:([a-z][a-z0-9]*(?:-[a-z0-9]+)*)[-:])?([0-9a-f]{64})(?:\.scope)?$`)
)

func checkNames(t *testing.T, text string) {
	t.Helper()
	if got, want := isName(text), nameForm.MatchString(text); got != want {
		t.Errorf("name %q: %t, want %t", text, got, want)
	}
	if got, want := isID(text), idForm.MatchString(text); got != want {
		t.Errorf("ID %q: %t, want %t", text, got, want)
	}
	if got, want := isUID(text), uidForm.MatchString(text); got != want {
		t.Errorf("UID %q: %t, want %t", text, got, want)
	}
	want := groupForm.FindStringSubmatch(text)
	runtime, id, ok := ofGroup(text)
	if ok != (want != nil) || ok && (runtime != want[1] || id != want[2]) {
		t.Errorf("cgroup %q: %q, %q, %t, want %q", text, runtime, id, ok, want)
	}
}

var (
	id64  = strings.Repeat("0123456789abcdef", 4)
	texts = []string{
		"", "-", "a", "A.b_c-d", ".a", "-a", "a/b", "a b", "é", "a\xff", "a\n", strings.Repeat("a", 64), strings.Repeat("a", 65), strings.Repeat("z", 253),
		strings.Repeat("z", 254), id64, id64[1:], "0" + id64, strings.ToUpper(id64), id64 + ".scope", ".scope", "-" + id64, ":" + id64,
		"docker-" + id64 + ".scope", "cri-containerd-" + id64 + ".scope", "cri-containerd:" + id64, "libpod-conmon-" + id64 + ".scope", "Docker-" + id64,
		"docker" + id64, "docker--" + id64, "-docker-" + id64, "1docker-" + id64, "a-B-" + id64, "docker-" + id64 + ".scope.scope", "docker-" + id64[1:] + ".scope",
		"docker-" + id64 + "-", "a9-9-" + id64, "docker_" + id64, "\n" + id64,
	}
)

func TestNames(t *testing.T) {
	for _, text := range texts {
		checkNames(t, text)
	}
}

func FuzzNames(f *testing.F) {
	for _, text := range texts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) { checkNames(t, text) })
}
