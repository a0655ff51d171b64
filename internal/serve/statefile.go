// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"smcr/internal/config"
	"smcr/internal/place"

	"golang.org/x/sys/unix"
)

// initialPIDs is the inode number of the PID namespace that shows all processes of
// the machine (linux/proc_ns.h).
const initialPIDs = 0xeffffffc

// A stateFile is the file with the changes that commands made in the stack of a
// network namespace. Like its directory, it exists until the machine restarts.
type stateFile struct {
	path string
	ino  uint64 // inode number of the network namespace
}

// newStateFile returns the state file of the calling thread's network namespace. Its
// name has the cookie of the namespace, which is unique until the machine restarts. If a
// stack that is not root's cannot write to dir, its file is in the directory of its sockets,
// which has the cookie as its name.
func newStateFile(dir, sockets string) (*stateFile, error) {
	ns, err := ownNamespace()
	if err != nil {
		return nil, err
	}
	f := &stateFile{filepath.Join(dir, fmt.Sprintf("state-%d.yaml", ns.cookie)), ns.ino}
	if os.Geteuid() != 0 && f.place() != nil {
		f.path = filepath.Join(sockets, place.State)
	}
	return f, nil
}

// isState reports whether a name in the directory is the name of a state file.
func isState(name string) bool {
	return strings.HasPrefix(name, "state-") && strings.HasSuffix(name, ".yaml")
}

// place creates the directory if necessary. It fails if users other than root and this
// user can create files in it, or if this user cannot.
func (f *stateFile) place() error {
	dir := filepath.Dir(f.path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if err := ours(dir, st); err != nil {
		return err
	}
	if !st.IsDir() {
		return fmt.Errorf("%s is not a directory", dir)
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return &fs.PathError{Op: "write", Path: dir, Err: err}
	}
	return nil
}

// ours fails if users other than root and this user could have written the file.
func ours(name string, st fs.FileInfo) error {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || sys.Uid != 0 && int(sys.Uid) != os.Geteuid() {
		return fmt.Errorf("%s belongs to another user", name)
	}
	if st.Mode()&fs.ModeSymlink == 0 && st.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is writable for other users", name)
	}
	return nil
}

// read returns the content of the file. The error matches fs.ErrNotExist if there is
// no file.
func (f *stateFile) read() ([]byte, error) {
	// O_NONBLOCK: opening a named pipe must not wait.
	file, err := os.OpenFile(f.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", f.path)
	}
	if err := ours(f.path, st); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(file, config.MaxSize+1))
}

// write replaces the file. A reader, also after a crash, finds either the old or the
// new content.
func (f *stateFile) write(b []byte) (err error) {
	if err := f.place(); err != nil {
		return err
	}
	// A file of an earlier process that was killed may exist. There is only one
	// stack in a namespace, so no other process uses it.
	name := f.path + ".new"
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(name)
		}
	}()
	// Chmod makes the mode independent of the umask.
	_, werr := file.Write(b)
	if err := errors.Join(werr, file.Chmod(0o644), file.Sync(), file.Close()); err != nil {
		return err
	}
	if err := os.Rename(name, f.path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(f.path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// remove removes the file if there is one.
func (f *stateFile) remove() error {
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// putAside renames an unusable file, so that an administrator can look at it, and
// returns its new name.
func (f *stateFile) putAside() (string, error) {
	name := f.path + brokenSuffix
	err := os.Rename(f.path, name)
	removeOldest(filepath.Dir(name), maxBroken, func(other string) bool {
		kept, ok := strings.CutSuffix(other, brokenSuffix)
		return ok && isState(kept) && other != filepath.Base(name)
	})
	return name, err
}

// brokenSuffix is the end of the name of a file that was put aside.
const brokenSuffix = ".broken"

// seesAll reports whether this process can see all processes of the machine.
func seesAll() bool {
	var st unix.Stat_t
	return unix.Stat("/proc/self/ns/pid", &st) == nil && st.Ino == initialPIDs
}

// removeStaleStates removes the state files of network namespaces that do not exist any more from a directory, but not
// the file of a path. Only a process that can see all processes does this.
func removeStaleStates(dir, but string) {
	if !seesAll() {
		return
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	// The state files are listed first, because a namespace exists before its file.
	gone := map[string]uint64{}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !isState(e.Name()) || path == but {
			continue
		}
		b, err := (&stateFile{path: path}).read()
		if err != nil {
			continue
		}
		if s, err := config.ParseState(b); err == nil && s.Namespace != 0 {
			gone[path] = s.Namespace
		}
	}
	alive, err := namespaces()
	if err != nil {
		return
	}
	for path, ino := range gone {
		if !alive[ino] {
			_ = os.Remove(path)
		}
	}
}
