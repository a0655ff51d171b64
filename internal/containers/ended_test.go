// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestEnded: the cgroup of a container or a pod that does not run is found among those that are attached. What is in it is not it.
func TestEnded(t *testing.T) {
	const uid, gone = "9e1b0c3a-6a5f-4c0e-9d0c-0e6f3b0f0001", "9e1b0c3a-6a5f-4c0e-9d0c-0e6f3b0f0002"
	w := newWorld(t, "docker/"+idA, "logs/shop_web-0_"+uid, "logs/shop_web-1_"+gone)
	w.knows("docker", map[string]string{"web": is(idA, 7), "stopped": is(idB, 0), "ended": is(idB, 9), "free": is(idA[2:]+"00", 0)})
	w.cgroups = map[int]string{7: "/docker/" + idA}
	podA, podB := "/kubepods.slice/kubepods-pod"+strings.ReplaceAll(uid, "-", "_")+".slice", "/kubepods/pod"+gone
	paths := []string{"/docker/" + idB + "/smcr-run-1", "/docker/" + idB, "/docker/" + idA, "/user.slice", "/", "", podA + "/x", podA, "/one/docker-" + idC + ".scope", "/two/docker-" + idC + ".scope"}
	find := func(f finder, which string) (string, error) {
		if pod, is := strings.CutPrefix(which, "pod "); is {
			all, err := f.pods(t.Context(), pod)
			return strings.Join(all, " "), err
		}
		return f.container(t.Context(), which)
	}
	f := w.finder()
	f.ended = paths
	for which, want := range map[string]struct {
		path string
		err  error
	}{
		"web": {path: "/docker/" + idA}, "stopped": {path: "/docker/" + idB}, "ended": {path: "/docker/" + idB},
		idB: {path: "/docker/" + idB}, idB[:12]: {path: "/docker/" + idB}, idB[:11]: {err: ErrNotFound}, "free": {err: ErrNotFound}, "nosuch": {err: ErrNotFound},
		idC: {err: ErrAmbiguous}, idC[:12]: {err: ErrAmbiguous},
		"pod web-0": {path: podA}, "pod shop/web-0": {path: podA}, "pod " + uid: {path: podA},
		"pod web-1": {err: ErrNotFound}, "pod " + gone: {err: ErrNotFound},
	} {
		if got, err := find(f, which); got != want.path || !errors.Is(err, want.err) {
			t.Errorf("%s: %q, %v, want %+v", which, got, err, want)
		}
	}
	f.ended = append(slices.Clone(paths), podB)
	if got, err := find(f, "pod web-1"); got != podB || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	// What runs is found in the tree alone.
	for _, which := range []string{"stopped", "ended", idB, "pod web-0"} {
		if got, err := find(w.finder(), which); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %q, %v", which, got, err)
		}
	}
	f.ended = []string{}
	if got, err := find(f, "stopped"); !errors.Is(err, ErrNotFound) {
		t.Errorf("nothing is attached: %q, %v", got, err)
	}
}
