// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Names of the sockets.
const (
	// Commands is for commands: netlink messages of package nl.
	Commands = "nl"
	// Takeover is for the process that takes the place over from this stack.
	Takeover = "takeover"
)

// sockets are the names of the sockets, and of what else goes with the stack. The last ones are
// of earlier releases.
var sockets = [...]string{Commands, Takeover, addressesName, "run", "local"}

// private reports whether only root and the user of the stack may connect to a socket.
func private(name string) bool { return name == Takeover }

// State is the name of a file in the directory of the sockets. A stack that cannot write to
// the directory above keeps there what commands have changed.
const State = "state.yaml"

const (
	// rootBase is the directory above that of root.
	rootBase = "/run"
	dirName  = "smcr"
	lockName = "lock"
	// fresh is the prefix of the name of a socket that is not ready yet.
	fresh = "."
)

// overflowUID is the user id that a user namespace shows for users that it does not map.
const overflowUID = 65534

// ErrAbsent means that no stack listens in this network namespace.
var ErrAbsent = errors.New("no stack in user space in this network namespace")

// ErrTaken means that another stack has the place.
var ErrTaken = errors.New("another stack serves this network namespace already")

// An UntrustedError describes a file or process at the place of the stack that another user
// than root and the caller's user may have put there. It matches [os.ErrPermission].
type UntrustedError struct {
	Path  string
	Owner uint32 // of the file, or of the process that listens
	Why   string // what is wrong, and what to do
}

// Error returns what was found and what to do.
func (e *UntrustedError) Error() string {
	text := e.Path + " " + e.Why
	if e.Owner == overflowUID {
		text += fmt.Sprintf(" (a user namespace shows root of the host as user %d: use the stack from outside of it)", overflowUID)
	}
	return text
}

// Is reports whether target is os.ErrPermission.
func (e *UntrustedError) Is(target error) bool { return target == os.ErrPermission }

// A view is what a process sees of the places of one network namespace.
type view struct {
	root   string // the directory above that of root
	own    string // the directory above that of the user
	uid    uint32
	cookie uint64
	ino    uint64 // inode number of the namespace; a later namespace may have the same
}

// bases returns the directories in which to look for the stack, in this order.
func (v *view) bases() []string { return []string{v.root, v.own} }

func (v *view) dir(base string) string {
	return filepath.Join(base, dirName, strconv.FormatUint(v.cookie, 10))
}

// ownBase returns the runtime directory of a user. It ignores xdg, the value of
// XDG_RUNTIME_DIR, if that directory belongs to another user: a program that changed its
// user may still have the variable of the earlier one.
func ownBase(xdg string, uid uint32) string {
	if filepath.IsAbs(xdg) {
		if st, err := os.Stat(xdg); err == nil && st.IsDir() && owner(st) == uid {
			return filepath.Clean(xdg)
		}
	}
	return fmt.Sprintf("/run/user/%d", uid)
}

// owner returns the user that a file belongs to.
func owner(st fs.FileInfo) uint32 {
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		return sys.Uid
	}
	return overflowUID
}

// isType returns an error if the file has another type than want. The caller must not look
// at files below such a file, because they could be below the target of a link.
func isType(path string, st fs.FileInfo, want fs.FileMode) error {
	if st.Mode().Type() == want {
		return nil
	}
	is := "is not a directory"
	switch {
	case st.Mode().Type() == fs.ModeSymlink:
		is = "is a symbolic link"
	case want == fs.ModeSocket:
		is = "is not a socket"
	}
	return &UntrustedError{Path: path, Owner: owner(st), Why: fmt.Sprintf("%s, made by user %d, and is not trusted: remove it", is, owner(st))}
}

// trusted returns an error if another user than root, uid and stack may have made the file,
// or may write to the directory. stack is the user to whom root has given the place, or 0.
// Other users may write to a socket, because that is needed to connect.
func trusted(path string, st fs.FileInfo, uid, stack uint32) error {
	u := owner(st)
	if u != 0 && u != uid && u != stack {
		return &UntrustedError{Path: path, Owner: u, Why: fmt.Sprintf("belongs to user %d, not to root or user %d, and is not trusted: "+
			"remove it, or use the stack as user %d", u, uid, u)}
	}
	if st.IsDir() && st.Mode().Perm()&0o022 != 0 {
		return &UntrustedError{Path: path, Owner: u, Why: fmt.Sprintf("is writable for other users (mode %04o) and is not trusted: "+
			"remove what is in it, then 'chmod go-w %s'", st.Mode().Perm(), path)}
	}
	return nil
}

// above checks a runtime directory. Other users may write to it if it belongs to root and
// has the sticky bit: then they cannot replace files of other users.
func above(path string, st fs.FileInfo, uid uint32) error {
	err := trusted(path, st, uid, 0)
	if err != nil && owner(st) == 0 && st.Mode()&fs.ModeSticky != 0 {
		return nil
	}
	return err
}

// onlyRoot reports whether only root can make files in a directory.
func onlyRoot(st fs.FileInfo) bool {
	return st.IsDir() && owner(st) == 0 && st.Mode().Perm()&0o022 == 0
}

// check checks base, the directory of the namespace below it, and the files name in there.
// It returns an error for the first one that is not trusted. The error matches
// fs.ErrNotExist if the last one does not exist: then no stack, trusted or not, is there.
// stack is the user to whom root has given the directory of the namespace, or 0.
func (v *view) check(base string, name ...string) (stack uint32, err error) {
	st, err := os.Stat(base)
	if err != nil {
		return 0, err
	}
	bad := above(base, st, v.uid)
	gives := base == v.root && onlyRoot(st)
	dir := v.dir(base)
	steps := []string{filepath.Dir(dir), dir}
	for _, n := range name {
		steps = append(steps, filepath.Join(dir, n))
	}
	for i, path := range steps {
		st, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return stack, err
		case err != nil:
			return stack, errors.Join(bad, err)
		}
		want := fs.ModeDir
		if i > 1 {
			want = fs.ModeSocket
		}
		if err := isType(path, st, want); err != nil {
			return stack, err
		}
		switch i {
		case 0:
			gives = gives && onlyRoot(st)
		case 1:
			// In a directory in which only root can make files, the owner of a directory
			// is the user whom root has chosen.
			if gives {
				stack = owner(st)
			}
		}
		if bad == nil {
			bad = trusted(path, st, v.uid, stack)
		}
	}
	return stack, bad
}
