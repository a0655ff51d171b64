// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"smcr/internal/cgroup"
	"smcr/internal/cmdutil"
	"smcr/internal/containers"
	"smcr/internal/services"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// A target names a cgroup by what is in it.
type target struct {
	unit, cgroup, container, pod string
	pid                          int
}

func (t *target) addFlags(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringVar(&t.unit, "unit", "", "the cgroup of a `unit` of systemd, whether or not it runs")
	fl.StringVar(&t.cgroup, "cgroup", "", "a `cgroup` by its path, from the top of the tree (as in /proc/PID/cgroup) or of the file system")
	fl.IntVar(&t.pid, "pid", 0, "the cgroup of a `process`, with all others in it")
	fl.StringVar(&t.container, "container", "", "the cgroup of a `container` of Docker or Podman by its name, or of any runtime by its ID")
	fl.StringVar(&t.pod, "pod", "", "the cgroup of a `pod` of Kubernetes, by its name, NAMESPACE/NAME, its UID, or, of all that have it, an annotation or a label KEY=VALUE")
	_ = cmd.RegisterFlagCompletionFunc("unit", services.CompleteUnits)
}

// targets are the flags of which there is one.
var targets = []string{"unit", "cgroup", "pid", "container", "pod"}

// targetForms is how they are used.
const targetForms = "{--unit|--cgroup|--pid|--container|--pod} NAME"

// check returns an error unless exactly one flag is given.
func (t *target) check(cmd *cobra.Command) error {
	n := 0
	for _, name := range targets {
		if cmd.Flags().Changed(name) {
			n++
		}
	}
	switch {
	case n != 1:
		return cmdutil.CommandError(cmd, "say which programs with one of --unit, --cgroup, --pid, --container and --pod")
	case cmd.Flags().Changed("pid") && t.pid <= 0:
		return cmdutil.UsageError("--pid %d: must be the number of a process", t.pid)
	}
	return nil
}

// otherwise is how to name a cgroup that a container or a pod does not say.
const otherwise = "say which with --cgroup or --pid"

// paths returns the paths of the cgroups. Only an annotation of pods may have several.
func (t *target) paths(ctx context.Context) (all []string, err error) {
	one := ""
	switch {
	case t.unit != "":
		one, err = unitCgroup(ctx, t.unit)
	case t.pid != 0:
		one, err = pidCgroup(t.pid)
	case t.container != "":
		one, err = containers.Container(ctx, t.container)
		return []string{one}, containers.Explain(err, otherwise)
	case t.pod != "":
		all, err = containers.Pods(ctx, t.pod)
		return all, containers.Explain(err, otherwise)
	default:
		one, err = namedCgroup(t.cgroup)
	}
	return []string{one}, err
}

// ended is paths for containers and pods that may have ended: of these cgroups, theirs.
func (t *target) ended(ctx context.Context, attached []string) (all []string, err error) {
	if t.pod != "" {
		all, err = containers.EndedPods(ctx, t.pod, attached)
	} else {
		all = make([]string, 1)
		all[0], err = containers.EndedContainer(ctx, t.container, attached)
	}
	return all, containers.Explain(err, otherwise)
}

// namedCgroup returns the path of a cgroup that is given by its path or its folder.
func namedCgroup(name string) (string, error) {
	top, err := cgroup.Top()
	if err != nil {
		return "", err
	}
	p := path.Clean(name)
	if rest, ok := strings.CutPrefix(p, top); ok && (rest == "" || rest[0] == '/') { // of the file system
		p = path.Join("/", rest)
	}
	if !cgroup.Valid(p) {
		return "", cmdutil.UsageError("--cgroup %q: must be a path that begins with /", name)
	}
	return p, nil
}

// elsewhere returns a process of a cgroup that is in another network namespace, or 0 if there is none, or if another one is here.
func elsewhere(p string) (pid int) {
	top, err := cgroup.Top()
	if err != nil {
		return 0
	}
	var own unix.Stat_t
	if unix.Stat("/proc/thread-self/ns/net", &own) != nil {
		return 0
	}
	for _, n := range cgroup.Processes(path.Join(top, p)) {
		var st unix.Stat_t
		if unix.Stat(fmt.Sprintf("/proc/%d/ns/net", n), &st) != nil {
			continue // gone, or the user may not know
		}
		if st.Ino == own.Ino && st.Dev == own.Dev {
			return 0
		}
		pid = n
	}
	return pid
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
