// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"os"
	"slices"

	"smcr/internal/cmdutil"
	"smcr/internal/containers"
)

// shortID is how many digits of the ID of a container are shown, as runtimes do.
const shortID = 12

// shortContainer returns the begin of the ID of the container.
func (p *Process) shortContainer() string { return p.Container[:min(len(p.Container), shortID)] }

// inCgroups returns the processes in cgroups, and below them.
func (p *procs) inCgroups(paths []string) []int {
	return p.those(func(t *task) bool {
		in := systemdCgroups(t.cgroups)[1]
		return slices.ContainsFunc(paths, func(top string) bool { return below(in, top) })
	})
}

// ofContainer is choose for a container or for pods.
func (o *options) ofContainer(ctx context.Context, items []item, w *owners) ([]*item, error) {
	var paths []string
	var err error
	if t := o.target; t.container != "" {
		paths = make([]string, 1)
		paths[0], err = o.env.container(ctx, t.container)
	} else {
		paths, err = o.env.pods(ctx, t.pods)
	}
	if err != nil {
		return nil, containers.Explain(err, "give a process")
	}
	pids := o.env.procs.inCgroups(paths)
	if len(pids) == 0 {
		return nil, cmdutil.Say(os.ErrNotExist, "no process is in %v%s", o.target, o.visible())
	}
	return o.ofAll(pids, o.target.String(), items, w)
}
