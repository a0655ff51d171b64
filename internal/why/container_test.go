// SPDX-License-Identifier: Apache-2.0

package why

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"smcr/internal/containers"
)

// TestContainer: the sockets of a container or a pod are those of the processes in its cgroup, and below it.
func TestContainer(t *testing.T) {
	id := strings.Repeat("0123456789ab", 6)[:64]
	group := "/system.slice/docker-" + id + ".scope"
	ask := func(arg string) ([]socketJSON, error) {
		w := newWorld(t)
		w.procs = fakeProcs(t,
			fakeTask{pid: 1, comm: "systemd", cgroup: "0::/init.scope\n"},
			fakeTask{pid: 50, comm: "smcr", cgroup: "0::/system.slice/smcr.service\n", sockets: []int{103}},
			fakeTask{pid: 61, parent: 1, uid: 5, comm: "web", cgroup: "0::" + group + "/x\n", sockets: []int{101, 102, 103}},
			fakeTask{pid: 80, parent: 1, uid: 6, comm: "curl", cgroup: "0::" + group + "0\n", sockets: []int{104}},
		)
		rows, _, err := w.ask(t, arg, func(o *options) {
			o.env.container = func(_ context.Context, name string) (string, error) {
				switch name {
				case "web":
					return group, nil
				case "two":
					return "", fmt.Errorf("%w: a, b", containers.ErrAmbiguous)
				case "idle":
					return "/idle", nil
				}
				return "", fmt.Errorf("%w %s", containers.ErrNotFound, name)
			}
			o.env.pods = func(_ context.Context, which string) ([]string, error) { return []string{"/none", group}, nil }
		})
		return rows, err
	}
	for _, arg := range []string{"container:web", "pod:shop/web-0", "pod:smcr=yes"} {
		rows, err := ask(arg)
		var got []string
		for _, r := range rows {
			got = append(got, strings.TrimSuffix(r.Local+">"+r.Remote, ">"))
			if r.Process == nil || r.Process.Container != id {
				t.Errorf("%s: process %+v, want container %s", arg, r.Process, id)
			}
		}
		if want := "0.0.0.0:80 10.0.0.1:80>10.0.0.2:4001 10.0.0.1:80>10.0.0.3:4002"; strings.Join(got, " ") != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", arg, got, err, want)
		}
	}
	for arg, want := range map[string]struct {
		is   error
		text string
	}{
		"container:nosuch": {os.ErrNotExist, "no such container nosuch"}, "container:two": {os.ErrInvalid, "a, b"}, "container:idle": {os.ErrNotExist, "no process is in container idle"},
	} {
		if rows, err := ask(arg); !errors.Is(err, want.is) || !strings.Contains(err.Error(), want.text) {
			t.Errorf("%s: %v, %v, want %q", arg, rows, err, want.text)
		}
	}
}
