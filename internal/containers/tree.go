// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
)

// one returns the cgroup of the tree for which is holds, or "". What is below such a cgroup is not looked at. The error matches
// ErrAmbiguous if there are several: who may make cgroups may have made one with the same name.
func (f finder) one(is func(path string) bool) (string, error) {
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
	switch {
	case err != nil || len(found) == 0:
		return "", err
	case len(found) > 1:
		return "", fmt.Errorf("%w: %s", ErrAmbiguous, strings.Join(found, ", "))
	}
	return found[0], nil
}
