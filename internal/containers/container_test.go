// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var (
	idA = strings.Repeat("a1", 32)
	idB = strings.Repeat("b2", 32)
	idC = "c3c3c3c3c3c3" + strings.Repeat("d", 52)
)

// A world is what a finder asks.
type world struct {
	programs map[string]func(args []string) (string, error)
	cgroups  map[int]string
	top      string
}

// newWorld is a machine with these folders in its tree of cgroups.
func newWorld(t *testing.T, cgroups ...string) *world {
	t.Helper()
	w := &world{programs: map[string]func([]string) (string, error){}, cgroups: map[int]string{}, top: t.TempDir()}
	for _, p := range cgroups {
		if err := os.MkdirAll(filepath.Join(w.top, p), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *world) finder() finder {
	return finder{
		run: func(_ context.Context, name string, args ...string) ([]byte, error) {
			p, ok := w.programs[name]
			if !ok {
				return nil, exec.ErrNotFound
			}
			out, err := p(args)
			return []byte(out), err
		},
		cgroup: func(pid int) (string, error) {
			if p, ok := w.cgroups[pid]; ok {
				return p, nil
			}
			return "", fs.ErrNotExist
		},
		top: func() (string, error) { return w.top, nil }, logs: filepath.Join(w.top, "logs"),
	}
}

// knows has a runtime know containers: the output of its 'container inspect' by name.
func (w *world) knows(runtime string, all map[string]string) {
	w.programs[runtime] = func(args []string) (string, error) {
		if len(args) != 3 || args[0] != "container" || args[1] != "inspect" {
			return "", fmt.Errorf("%q", args)
		}
		if out, ok := all[args[2]]; ok {
			return out, nil
		}
		return "[]", fmt.Errorf("exit status 1: Error: No such container: %s", args[2])
	}
}

// is the output of 'container inspect'.
func is(id string, pid int) string {
	return fmt.Sprintf(`[{"Id":%q,"Name":"/x","State":{"Status":"running","Running":true,"Pid":%d}}]`, id, pid)
}

// TestContainer: the cgroup of a container is the outermost one with its ID, wherever in it its process is.
func TestContainer(t *testing.T) {
	w := newWorld(t, "docker/"+idB, "user.slice/docker-"+idC+".scope", "user.slice/x/libpod-"+idC[:63]+"e.scope", "twice/docker-"+idA+".scope", "other/docker-"+idA+".scope")
	w.knows("docker", map[string]string{"web": is(idA, 7), "db": is(idB, 8), "both": is(idA, 7), "stopped": is(idA, 0), "ended": is(idA, 9), "bad": "{", "none": "[]",
		"path": is("../../etc", 7), "shared": is(idA, 10), "foreign": is(idA, 8)})
	w.knows("podman", map[string]string{"pod": is(idC, 11), "both": is(idC, 11), "split": is(idC, 12)})
	w.cgroups = map[int]string{
		7: "/system.slice/docker-" + idA + ".scope/init.scope/docker-" + idB + ".scope", 8: "/docker/" + idB, 10: "/user.slice/session-1.scope",
		11: "/machine.slice/libpod-" + idC + ".scope/container", 12: "/system.slice/web.service/libpod-payload-" + idC,
	}
	for name, want := range map[string]string{
		"web": "/system.slice/docker-" + idA + ".scope", "db": "/docker/" + idB, "pod": "/machine.slice/libpod-" + idC + ".scope",
		"split": "/system.slice/web.service/libpod-payload-" + idC,
		idB:     "/docker/" + idB, idB[:12]: "/docker/" + idB,
	} {
		if got, err := w.finder().container(t.Context(), name); got != want || err != nil {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
	for name, want := range map[string]struct {
		err  error
		text string
	}{
		"nosuch":  {ErrNotFound, "docker: exit status 1: Error: No such container: nosuch; podman: "},
		"stopped": {ErrNotFound, "stopped does not run"},
		"ended":   {ErrNotFound, "has ended, or runs on another machine"},
		"both":    {ErrAmbiguous, "libpod-" + idC},
		"shared":  {ErrShared, "process 10 of shared is in /user.slice/session-1.scope"},
		"foreign": {ErrShared, "process 8"}, // the number is that of another process meanwhile
		"bad":     {nil, "the output of 'docker container inspect'"},
		"none":    {nil, "does not name one container"},
		"path":    {nil, "does not name one container"},
		idC[:12]:  {ErrAmbiguous, "/user.slice/docker-"},
		idA:       {ErrAmbiguous, "/twice/docker-"}, // one of them may be made by anybody
		idB[:11]:  {ErrNotFound, "No such container"},
		"--all":   {ErrNotFound, `"--all"`},
		"../x":    {ErrNotFound, `"../x"`},
		"":        {ErrNotFound, `""`},
	} {
		if got, err := w.finder().container(t.Context(), name); got != "" || err == nil || want.err != nil && !errors.Is(err, want.err) || !strings.Contains(err.Error(), want.text) {
			t.Errorf("%q: %q, %v, want %v, %q", name, got, err, want.err, want.text)
		}
	}
	w.programs = nil
	if _, err := w.finder().container(t.Context(), "web"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "neither docker nor podman is installed") {
		t.Error(err)
	}
}

// TestOneProgram: where docker is the other name of podman, both know a container, which is one.
func TestOneProgram(t *testing.T) {
	w := newWorld(t)
	for _, runtime := range runtimes {
		w.knows(runtime, map[string]string{"web": is(idA, 7)})
	}
	want := "/machine.slice/libpod-" + idA + ".scope"
	w.cgroups = map[int]string{7: want}
	if got, err := w.finder().container(t.Context(), "web"); got != want || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// TestOf: each runtime has its own names, with systemd and without.
func TestOf(t *testing.T) {
	for in, want := range map[string]string{
		"/system.slice/docker-" + idA + ".scope":           "/system.slice/docker-" + idA + ".scope",
		"/docker/" + idA:                                   "/docker/" + idA,
		"/docker/" + idA + "/docker/" + idB:                "/docker/" + idA, // made by the container
		"/machine.slice/libpod-" + idA + ".scope/a/b":      "/machine.slice/libpod-" + idA + ".scope",
		"/libpod_parent/libpod-" + idA:                     "/libpod_parent/libpod-" + idA,
		"/kubepods/besteffort/pod1/" + idA:                 "/kubepods/besteffort/pod1/" + idA,
		"/kubepods.slice/cri-containerd-" + idA + ".scope": "/kubepods.slice/cri-containerd-" + idA + ".scope",
		"/kubepods.slice/crio-" + idA + ".scope":           "/kubepods.slice/crio-" + idA + ".scope",
		"/x/kubepods-pod1.slice:cri-containerd:" + idA:     "",
		"/system.slice/nerdctl-" + idA + ".scope":          "/system.slice/nerdctl-" + idA + ".scope",
		"/machine.slice/libpod-conmon-" + idA + ".scope":   "",
		"/kubepods.slice/crio-conmon-" + idA + ".scope":    "",
		"/system.slice/nginx.service":                      "",
		"/docker/" + idA[:63]:                              "",
		"/docker/" + idA + "0":                             "",
		"/docker-" + strings.ToUpper(idA) + ".scope":       "",
		"/": "",
		"":  "",
	} {
		got, id := Of(in)
		if got != want || (id == idA) != (want != "") {
			t.Errorf("%s: %q, %q, want %q", in, got, id, want)
		}
	}
}

const podUID = "9e1b0c3a-6a5f-4c0e-9d0c-0e6f3b0f0001"

// TestPods: pods are found by UID, name, and annotation.
func TestPods(t *testing.T) {
	const (
		burstable = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod9e1b0c3a_6a5f_4c0e_9d0c_0e6f3b0f0001.slice"
		static    = "/kubepods/besteffort/podaaaa"
		second    = "/kubepods/pod2222"
	)
	w := newWorld(t, burstable+"/cri-containerd-"+idA+".scope/pod9e1b0c3a-6a5f-4c0e-9d0c-0e6f3b0f0001", static+"/1", second, "other-podbbbb", "x/pod3333", "y/pod3333",
		"logs/shop_web-0_"+podUID, "logs/shop_web-0_0000", "logs/shop_db_aaaa", "logs/test_db_2222", "logs/test_gone_4444", "logs/odd", "logs/a_b_..", "logs/test_fake_3333")
	w.programs["crictl"] = func(args []string) (string, error) {
		if got := strings.Join(args, " "); got != "pods --state ready --output json" {
			return "", errors.New(got)
		}
		return `{"items":[{"id":"1","metadata":{"name":"web-0","uid":"` + podUID + `","namespace":"shop"},"annotations":{"smcr":"yes"},"labels":{"app":"web"}},
			{"metadata":{"uid":"aaaa"},"annotations":{"smcr":"yes"}},{"metadata":{"uid":"2222"},"annotations":{"smcr":"no"}},
			{"metadata":{"uid":"../.."},"annotations":{"smcr":"yes"}},{"metadata":{"uid":"gone"},"annotations":{"smcr":"gone"}}]}`, nil
	}
	for which, want := range map[string]string{
		podUID: burstable, "aaaa": static, "web-0": burstable, "shop/web-0": burstable, "shop/db": static, "test/db": second,
		"smcr=yes": burstable + " " + static, "smcr=no": second, "app=web": burstable,
	} {
		if got, err := w.finder().pods(t.Context(), which); strings.Join(got, " ") != want || err != nil || !slices.IsSorted(got) {
			t.Errorf("%s: %q, %v, want %q", which, got, err, want)
		}
	}
	for which, want := range map[string]error{
		"aaa": ErrNotFound, "": ErrNotFound, "gone": ErrNotFound, "shop/gone": ErrNotFound, "b": ErrNotFound, "a/b": ErrNotFound, "/": ErrNotFound, "../web-0": ErrNotFound,
		"db": ErrAmbiguous, "3333": ErrAmbiguous, "fake": ErrAmbiguous, "smcr=": ErrNotFound, "smcr=gone": ErrNotFound, "=": ErrNotFound,
	} {
		if got, err := w.finder().pods(t.Context(), which); !errors.Is(err, want) || strings.Join(got, "") != "" {
			t.Errorf("%q: %q, %v, want %v", which, got, err, want)
		}
	}
	w.programs = nil
	if _, err := w.finder().pods(t.Context(), "a=b"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "crictl") {
		t.Error(err)
	}
}
