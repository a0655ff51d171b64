// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	"smcr/internal/cgroup"
	"smcr/internal/cmdutil"

	"github.com/spf13/cobra"
)

// A target names a cgroup by what is in it.
type target struct {
	unit, cgroup, pod string
	pid               int
}

// unitTime limits a question to systemd.
const unitTime = 30 * time.Second

func (t *target) addFlags(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&t.unit, "unit", "", "the cgroup of a `unit` of systemd, whether or not it runs")
	fl.StringVar(&t.cgroup, "cgroup", "", "a `cgroup` by its path, from the top of the tree (as in /proc/PID/cgroup) or of the file system")
	fl.IntVar(&t.pid, "pid", 0, "the cgroup of a `process`, with all others in it")
	fl.StringVar(&t.pod, "pod", "", "the cgroup of a pod of Kubernetes, by its `UID`")
}

// check returns an error unless exactly one flag is given.
func (t *target) check(cmd *cobra.Command) error {
	n := 0
	for _, name := range []string{"unit", "cgroup", "pid", "pod"} {
		if cmd.Flags().Changed(name) {
			n++
		}
	}
	switch {
	case n != 1:
		return cmdutil.CommandError(cmd, "say which programs with one of --unit, --cgroup, --pid and --pod")
	case cmd.Flags().Changed("pid") && t.pid <= 0:
		return cmdutil.UsageError("--pid %d: must be the number of a process", t.pid)
	}
	return nil
}

// path returns the path of the cgroup.
func (t *target) path(ctx context.Context) (string, error) {
	switch {
	case t.unit != "":
		return unitCgroup(ctx, t.unit)
	case t.pid != 0:
		return pidCgroup(t.pid)
	}
	top, err := cgroup.Top()
	if err != nil {
		return "", err
	}
	if t.pod != "" {
		return podCgroup(top, t.pod)
	}
	p := path.Clean(t.cgroup)
	if rest, ok := strings.CutPrefix(p, top); ok && (rest == "" || rest[0] == '/') { // of the file system
		p = path.Join("/", rest)
	}
	if !cgroup.Valid(p) {
		return "", cmdutil.UsageError("--cgroup %q: must be a path that begins with /", t.cgroup)
	}
	return p, nil
}

func pidCgroup(pid int) (string, error) {
	p, err := cgroup.Of(pid)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", cmdutil.Say(err, "no process %d", pid)
	case err != nil:
		return "", err
	case p == "/":
		return "", cmdutil.Say(os.ErrInvalid, "process %d is at the top of the cgroups, as all processes are: say '--cgroup /' if those are meant", pid)
	}
	return p, nil
}

// unitCgroup returns the cgroup of a unit of systemd. One that does not run has the cgroup that it will have.
func unitCgroup(ctx context.Context, unit string) (string, error) {
	if path.Ext(unit) == "" {
		unit += ".service"
	}
	ctx, cancel := context.WithTimeout(ctx, unitTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "systemctl", "show", "--property=LoadState,Id,Slice,ControlGroup", "--", unit)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	out, err := cmd.Output()
	if err != nil {
		return "", cmdutil.Say(err, "systemd does not say what unit %q is: %v", unit, err)
	}
	return parseUnit(unit, string(out))
}

// parseUnit returns the cgroup of a unit by its properties.
func parseUnit(unit, properties string) (string, error) {
	has := map[string]string{}
	for line := range strings.Lines(properties) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		has[key] = value
	}
	if p := has["ControlGroup"]; cgroup.Valid(p) && p != "/" {
		return p, nil
	}
	if state := has["LoadState"]; state == "not-found" || has["Id"] == "" {
		return "", cmdutil.Say(fs.ErrNotExist, "no unit %q: see 'systemctl list-units'", unit)
	}
	if has["Slice"] == "" {
		return "", cmdutil.Say(os.ErrInvalid, "unit %q has no processes", unit)
	}
	// A slice is below those whose names its name begins with (systemd.slice(5)).
	p, name := "/", strings.TrimSuffix(has["Slice"], ".slice")
	if name != "-" {
		parts := strings.Split(name, "-")
		for i := range parts {
			p = path.Join(p, strings.Join(parts[:i+1], "-")+".slice")
		}
	}
	p = path.Join(p, has["Id"])
	if !cgroup.Valid(p) {
		return "", cmdutil.Say(os.ErrInvalid, "unit %q has no cgroup", unit)
	}
	return p, nil
}

// podCgroup looks for the cgroup of a pod, whose name has the UID: with underscores if systemd makes the cgroups.
func podCgroup(top, uid string) (string, error) {
	found := ""
	err := filepath.WalkDir(top, func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // gone meanwhile
		}
		name := strings.ReplaceAll(strings.TrimSuffix(d.Name(), ".slice"), "_", "-")
		if name == "pod"+uid || strings.HasSuffix(name, "-pod"+uid) {
			found = path.Join("/", strings.TrimPrefix(dir, top))
			return fs.SkipAll
		}
		return nil
	})
	if err == nil && (found == "" || uid == "") {
		err = cmdutil.Say(fs.ErrNotExist, "no pod %q on this host: see 'kubectl get pod NAME -o jsonpath={.metadata.uid}'", uid)
	}
	return found, err
}
