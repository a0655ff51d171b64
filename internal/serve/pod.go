// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"smcr/internal/cgroup"
)

// CgroupOptions are the flags of smcr serve that choose programs which use SMC from the start
// on. At most one is set.
type CgroupOptions struct {
	// Dir is Cgroup of service.Config.
	Dir string
	// PodTree is where the cgroups of the host are mounted. The stack serves all containers
	// of its pod.
	PodTree string
}

// dir returns Cgroup of service.Config.
func (o *CgroupOptions) dir() (string, error) {
	switch {
	case o.PodTree != "":
		own, err := ownCgroup()
		if err != nil {
			return "", err
		}
		return podCgroup(o.PodTree, own)
	case o.Dir != "":
		return o.Dir, onCgroup2(o.Dir)
	}
	return "", nil
}

// onCgroup2 returns an error if path is not a directory of a cgroup v2 tree.
func onCgroup2(path string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return &fs.PathError{Op: "statfs", Path: path, Err: err}
	}
	if int64(st.Type) != unix.CGROUP2_SUPER_MAGIC {
		return fmt.Errorf("%s is not in a cgroup v2 tree: mount that of the host there: %w", path, os.ErrInvalid)
	}
	return nil
}

// ownCgroup returns the directory of the cgroup of this process. In a container, this is often
// the top of what the container sees of the tree.
func ownCgroup() (string, error) {
	top, err := cgroup.Top()
	if err != nil {
		return "", err
	}
	own, err := cgroup.Of(0)
	if err != nil {
		return "", err
	}
	return filepath.Join(top, own), nil
}

// podCgroup looks in the tree for the cgroup own, and returns the directory above it: a pod has
// a cgroup for each container, and one above these. The names of own in the tree are not known,
// because a container has a cgroup namespace, but its inode number is the same there.
func podCgroup(tree, own string) (string, error) {
	if err := onCgroup2(tree); err != nil {
		return "", err
	}
	want, err := os.Stat(own)
	if err != nil {
		return "", err
	}
	errFound := errors.New("found")
	pod := ""
	err = filepath.WalkDir(tree, func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // it was removed meanwhile
		case err != nil:
			return err
		case !e.IsDir():
			return nil
		}
		st, err := e.Info()
		if err != nil || !os.SameFile(st, want) {
			return nil // removed meanwhile, or another one
		}
		pod = filepath.Dir(path)
		if path == filepath.Clean(tree) {
			return fmt.Errorf("the cgroup of this process is %s itself: mount a cgroup above the one of the pod there: %w", tree, os.ErrInvalid)
		}
		return errFound
	})
	if errors.Is(err, errFound) {
		return pod, nil
	}
	if err == nil {
		err = fmt.Errorf("the cgroup of this process is not in %s: mount the tree of the host there: %w", tree, os.ErrNotExist)
	}
	return "", err
}
