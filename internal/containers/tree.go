// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// one returns the cgroup for which is holds, or "". What is below such a cgroup is not looked at. The error matches
// ErrAmbiguous if there are several: who may make cgroups may have made one with the same name.
func (f finder) one(is func(path string) bool) (string, error) {
	if f.ended != nil {
		return single(slices.DeleteFunc(slices.Clone(f.ended), func(p string) bool { return !is(p) || below(p, is) }))
	}
	top, err := f.top()
	if err != nil {
		return "", err
	}
	var found []string
	err = filepath.WalkDir(top+"/.", func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // gone meanwhile
		}
		if p := path.Join("/", strings.TrimPrefix(dir, top)); is(p) {
			found = append(found, p)
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		return "", err
	}
	return single(found)
}

// below reports whether is holds for a cgroup around p.
func below(p string, is func(path string) bool) bool {
	for p = path.Join("/", p); p != "/"; {
		if p = path.Dir(p); is(p) {
			return true
		}
	}
	return false
}

// single returns the element of a list, or "" if there is none. The error matches ErrAmbiguous if there are several.
func single(found []string) (string, error) {
	switch len(found) {
	case 0:
		return "", nil
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("%w: %s", ErrAmbiguous, strings.Join(found, ", "))
}
