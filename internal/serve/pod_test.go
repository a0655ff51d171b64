// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"smcr/internal/cgroup"
)

// TestPodCgroup finds the cgroup of a pod in a tree, from that of one of its containers.
func TestPodCgroup(t *testing.T) {
	top := writableCgroups(t)
	tree := filepath.Join(top, fmt.Sprintf("smcr-test-%d-pods", os.Getpid()))
	pod := filepath.Join(tree, "kubepods", "burstable", "pod7")
	own := filepath.Join(pod, "stack")
	dirs := []string{own, filepath.Join(pod, "program"), filepath.Join(tree, "kubepods", "pod6", "stack")}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, dir := range dirs {
			for ; len(dir) >= len(tree); dir = filepath.Dir(dir) {
				_ = os.Remove(dir) // unless something is in it
			}
		}
		if _, err := os.Stat(tree); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left behind: %v", tree, err)
		}
	})
	for _, test := range []struct {
		tree, own, want string
		err             error
	}{
		{tree, own, pod, nil},
		{tree + "/", own, pod, nil},
		{top, own, pod, nil},
		{pod, own, pod, nil},
		{own, own, "", os.ErrInvalid},
		{dirs[1], own, "", os.ErrNotExist},
		{t.TempDir(), own, "", os.ErrInvalid},
		{filepath.Join(tree, "none"), own, "", os.ErrNotExist},
		{tree, filepath.Join(tree, "none"), "", os.ErrNotExist},
	} {
		got, err := podCgroup(test.tree, test.own)
		if got != test.want || !errors.Is(err, test.err) {
			t.Errorf("podCgroup(%s, %s): %q, %v, want %q, %v", test.tree, test.own, got, err, test.want, test.err)
		}
	}

	got, err := ownCgroup()
	if err == nil {
		err = onCgroup2(got)
	}
	if err != nil {
		t.Errorf("the cgroup of this process: %q, %v", got, err)
	}
}

// TestCgroupOptions checks which directory the flags choose.
func TestCgroupOptions(t *testing.T) {
	top, err := cgroup.Top()
	if err != nil {
		t.Skip(err)
	}
	for _, test := range []struct {
		opts CgroupOptions
		want string
		err  error
	}{
		{CgroupOptions{}, "", nil},
		{CgroupOptions{Dir: top}, top, nil},
		{CgroupOptions{Dir: t.TempDir()}, "", os.ErrInvalid},
		{CgroupOptions{Dir: filepath.Join(top, "none")}, "", os.ErrNotExist},
		{CgroupOptions{PodTree: t.TempDir()}, "", os.ErrInvalid},
	} {
		got, err := test.opts.dir()
		if !errors.Is(err, test.err) || err == nil && got != test.want {
			t.Errorf("%+v: %q, %v, want %q, %v", test.opts, got, err, test.want, test.err)
		}
	}
}
