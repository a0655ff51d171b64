// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/cgroup"
	"smcr/internal/cmdutil"
	"smcr/internal/testing/testkind"
)

// sleeper starts a process in a cgroup of its own, perhaps in a network namespace of its own, and returns the path of the cgroup.
func sleeper(t *testing.T, name string, netns bool) (path string) {
	t.Helper()
	top, err := cgroup.Top()
	if err != nil {
		t.Skip(err)
	}
	path = fmt.Sprintf("/smcr-test-attach-%d-%s", os.Getpid(), name)
	if err := os.Mkdir(top+path, 0o755); err != nil {
		t.Skip("the cgroup v2 tree is not for this process to write: ", err)
	}
	t.Cleanup(func() { _ = os.Remove(top + path) })
	cmd := exec.Command("sleep", "600")
	if netns {
		cmd.SysProcAttr = &unix.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	}
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if err := cgroup.Enter(filepath.Join(top, path), cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestHere: a container in another network namespace is not attached, and the message says how. Of several pods, the others are.
func TestHere(t *testing.T) {
	testkind.System(t)
	here, away := sleeper(t, "here", false), sleeper(t, "away", true)
	const none = "/smcr-test-attach-none"
	for _, c := range []struct {
		target target
		paths  []string
		want   []string // nil: an error
		says   string
	}{
		{target{container: "web"}, []string{here}, []string{here}, ""},
		{target{container: "web"}, []string{none}, []string{none}, ""},
		{target{container: "web"}, []string{away}, nil, "container web is in a network namespace of its own"},
		{target{pod: "a=b"}, []string{away, here}, []string{here}, "--net smcr attach --pod a=b'"},
		{target{pod: "a=b"}, []string{away, away}, nil, "pod a=b is in"},
		{target{cgroup: away}, []string{away}, []string{away}, "--net smcr attach --cgroup " + away + "'"},
		{target{cgroup: here}, []string{here}, []string{here}, ""},
	} {
		var out bytes.Buffer
		o := &attachOptions{Factory: &cmdutil.Factory{IO: &cmdutil.IOStreams{Out: &out, ErrOut: &out}}, target: c.target}
		got, err := o.here(c.paths)
		said := out.String()
		if err != nil {
			said = err.Error()
		}
		if strings.Join(got, " ") != strings.Join(c.want, " ") || (err != nil) != (c.want == nil) || err != nil && !errors.Is(err, os.ErrInvalid) || !strings.Contains(said, c.says) || c.says == "" && said != "" {
			t.Errorf("%+v %q: %q, %v, %q", c.target, c.paths, got, err, said)
		}
	}
}
