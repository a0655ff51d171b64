// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"time"

	"smcr/internal/cgroup"
)

var (
	// ErrNotFound means that there is no such container or pod on this machine, or that it does not run.
	ErrNotFound = errors.New("no such container")
	// ErrAmbiguous means that a name is that of several.
	ErrAmbiguous = errors.New("more than one container")
	// ErrShared means that a container has no cgroup of its own.
	ErrShared = errors.New("the container has no cgroup of its own")
)

// runtimes are the programs that are asked for a container, if they are installed. Each has the subcommand 'container
// inspect', with the same form of JSON.
var runtimes = []string{"docker", "podman"}

// askTime bounds a question to a container runtime.
const askTime = 30 * time.Second

// leastID is how many digits of an ID are enough where no runtime knows it: runtimes print so many.
const leastID = 12

// A finder looks for containers and pods. The zero value is of no use.
type finder struct {
	// run runs a program and returns its standard output. The error has what it has printed to standard error.
	run func(ctx context.Context, name string, args ...string) ([]byte, error)
	// cgroup returns the cgroup of a process.
	cgroup func(pid int) (string, error)
	// top returns where the cgroup v2 tree is mounted.
	top func() (string, error)
	// logs is the folder of the logs of pods.
	logs string
	// ended has the cgroups that count, whether or not they exist. Nil: those of the tree, of what runs.
	ended []string
}

func system() finder { return finder{run: run, cgroup: cgroup.Of, top: cgroup.Top, logs: podLogs} }

func systemEnded(paths []string) finder {
	f := system()
	f.ended = append([]string{}, paths...)
	return f
}

// run runs a program of a container runtime.
func run(ctx context.Context, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	cmd.WaitDelay = time.Second
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if said := strings.Join(strings.Fields(errs.String()), " "); err != nil && said != "" {
		err = fmt.Errorf("%w: %s", err, said)
	}
	return out, err
}

// Container returns the cgroup of a container that runs, by its name or its ID. The error matches ErrNotFound, ErrAmbiguous or ErrShared.
func Container(ctx context.Context, name string) (string, error) {
	return system().container(ctx, name)
}

// EndedContainer is Container for one that may have ended. Its cgroup is one of paths. A runtime knows a container until it is removed, and then there is
// its ID.
func EndedContainer(ctx context.Context, name string, paths []string) (string, error) {
	return systemEnded(paths).container(ctx, name)
}

func (f finder) container(ctx context.Context, name string) (string, error) {
	if !isName(name) {
		return "", fmt.Errorf("%w has the name %q", ErrNotFound, name)
	}
	var found, said []string
	for _, runtime := range runtimes {
		p, err := f.ask(ctx, runtime, name)
		switch {
		case err == nil:
			found = append(found, p)
		case errors.Is(err, exec.ErrNotFound):
		case errors.Is(err, ErrNotFound):
			said = append(said, runtime+": "+strings.TrimPrefix(err.Error(), ErrNotFound.Error()+": "))
		default:
			return "", err
		}
	}
	// One program may be the other, as with Podman's package that has the name docker.
	if found = slices.Compact(found); len(found) == 1 {
		return found[0], nil
	}
	if found == nil {
		if p, err := f.byID(name); p != "" || err != nil {
			return p, err
		}
		if said == nil {
			said = []string{"neither " + strings.Join(runtimes, " nor ") + " is installed; the ID of a container will do"}
		}
		return "", fmt.Errorf("%w %s (%s)", ErrNotFound, name, strings.Join(said, "; "))
	}
	return "", fmt.Errorf("%w with the name %s: %s", ErrAmbiguous, name, strings.Join(found, ", "))
}

// ask returns the cgroup of a container that a runtime knows.
func (f finder) ask(ctx context.Context, runtime, name string) (string, error) {
	out, err := f.run(ctx, runtime, "container", "inspect", name)
	if err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return "", err
		}
		return "", fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	var all []struct {
		ID    string `json:"Id"`
		State struct{ Pid int }
	}
	if err := json.Unmarshal(out, &all); err != nil {
		return "", fmt.Errorf("the output of '%s container inspect': %w", runtime, err)
	}
	if len(all) != 1 || !isID(all[0].ID) {
		return "", fmt.Errorf("'%s container inspect %s' does not name one container", runtime, name)
	}
	if f.ended != nil {
		if p, err := f.one(func(p string) bool { _, id := Of(p); return id == all[0].ID }); p != "" || err != nil {
			return p, err
		}
	}
	if all[0].State.Pid <= 0 {
		return "", fmt.Errorf("%w: %s does not run", ErrNotFound, name)
	}
	in, err := f.cgroup(all[0].State.Pid)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: %s has ended, or runs on another machine", ErrNotFound, name)
	}
	if err != nil {
		return "", err
	}
	p, id := Of(in)
	if id != all[0].ID {
		return "", fmt.Errorf("%w: process %d of %s is in %s", ErrShared, all[0].State.Pid, name, in)
	}
	return p, nil
}

// byID returns the cgroup whose name has an ID that begins so, or "".
func (f finder) byID(prefix string) (string, error) {
	if len(prefix) < leastID || strings.Trim(prefix, "0123456789abcdef") != "" {
		return "", nil
	}
	return f.one(func(p string) bool {
		_, id := Of(p)
		return strings.HasPrefix(id, prefix)
	})
}

// Of returns the cgroup of the container in which a cgroup is, and the ID of the container; or "" if it is in none. The cgroups in
// which runtimes have processes of their own beside a container are none.
func Of(in string) (p, id string) {
	p = "/"
	for word := range strings.SplitSeq(strings.TrimPrefix(in, "/"), "/") {
		p = path.Join(p, word)
		runtime, id, ok := ofGroup(word)
		if !ok {
			continue
		}
		if strings.HasSuffix(runtime, "conmon") {
			return "", ""
		}
		return p, id
	}
	return "", ""
}
