// SPDX-License-Identifier: Apache-2.0

package run

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// installedName is the name of the copy of this program.
const installedName = "smcr"

// install copies this program to a directory. A container of another image can then run its
// program under the copy, if this program is static. A copy that is there is replaced at once,
// so that nobody executes part of it.
func install(dir string) (err error) {
	from, err := os.Open("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("cannot read this program: %w", err)
	}
	defer from.Close()
	to, err := os.CreateTemp(dir, "."+installedName+"-*")
	if err != nil {
		return fmt.Errorf("cannot copy this program: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(to.Name())
			err = fmt.Errorf("cannot copy this program to %s: %w", dir, err)
		}
	}()
	_, err = io.Copy(to, from)
	// The users of the other containers are not known here.
	if err = errors.Join(err, to.Chmod(0o755), to.Close()); err != nil {
		return err
	}
	return os.Rename(to.Name(), filepath.Join(dir, installedName))
}
