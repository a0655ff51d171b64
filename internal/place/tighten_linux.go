// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// tighten takes from other users the right to write to a directory that belongs to the user
// uid and is empty. It returns what the directory is afterwards. A directory with something
// in it is not changed, because another user may have made that.
//
// A new volume of a Kubernetes pod (emptyDir) is such a directory: it belongs to root and has
// the mode 0777, whatever the pod says.
func tighten(path string, st fs.FileInfo, uid uint32) (fs.FileInfo, error) {
	if st.Mode().Type() != fs.ModeDir || owner(st) != uid || st.Mode().Perm()&0o022 == 0 {
		return st, nil
	}
	d, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return st, err
	}
	defer d.Close()
	if now, err := d.Stat(); err != nil || !os.SameFile(now, st) || !empty(d) {
		return st, err
	}
	if err := d.Chmod(st.Mode() &^ 0o022); err != nil {
		return st, err
	}
	// From now on, nobody else can make files here. Somebody may have made one before.
	if !empty(d) {
		return st, d.Chmod(st.Mode())
	}
	return d.Stat()
}

// empty reports whether an open directory has no entries.
func empty(d *os.File) bool {
	if _, err := d.Seek(0, io.SeekStart); err != nil {
		return false
	}
	_, err := d.Readdirnames(1)
	return errors.Is(err, io.EOF)
}
