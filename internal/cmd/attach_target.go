// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"smcr/internal/cgroup"
	"smcr/internal/cmdutil"
	"smcr/internal/services"

	"github.com/spf13/cobra"
)

// A target names a cgroup by what is in it.
type target struct {
	unit, cgroup, pod string
	pid               int
}

func (t *target) addFlags(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&t.unit, "unit", "", "the cgroup of a `unit` of systemd, whether or not it runs")
	fl.StringVar(&t.cgroup, "cgroup", "", "a `cgroup` by its path, from the top of the tree (as in /proc/PID/cgroup) or of the file system")
	fl.IntVar(&t.pid, "pid", 0, "the cgroup of a `process`, with all others in it")
	fl.StringVar(&t.pod, "pod", "", "the cgroup of a pod of Kubernetes, by its `UID`")
	_ = cmd.RegisterFlagCompletionFunc("unit", services.CompleteUnits)
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
	p, err := services.Cgroup(ctx, unit)
	switch {
	case errors.Is(err, services.ErrNoSystemd):
		return "", cmdutil.Say(err, "no systemd runs here: say which programs with --cgroup or --pid")
	case errors.Is(err, services.ErrNotFound):
		return "", cmdutil.Say(errors.Join(fs.ErrNotExist, err), "no unit %q: see 'systemctl list-units'", unit)
	case errors.Is(err, services.ErrNoProgram):
		return "", cmdutil.Say(errors.Join(os.ErrInvalid, err), "unit %q has no processes", unit)
	}
	return p, err
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
