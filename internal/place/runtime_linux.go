// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Runtime returns the directory for files of smcr that belong to the calling user and not
// to a network namespace: /run/smcr for root, $XDG_RUNTIME_DIR/smcr or /run/user/UID/smcr
// for others. It makes the directory if necessary. Other users cannot write there. The
// error matches [fs.ErrNotExist] if the user has no runtime directory, for example because
// no session of the user is open.
func Runtime() (string, error) {
	uid := thisUser()
	base := ownBase(os.Getenv("XDG_RUNTIME_DIR"), uid)
	if uid == 0 {
		base = rootBase
	}
	return runtimeDir(base, uid)
}

// nobody is a user to whom nothing can belong (chown(2) and setuid(2) refuse it).
const nobody = ^uint32(0)

// allUsers is the file uid_map of a user namespace that maps all users.
const allUsers = "0 0 4294967295"

// thisUser returns the user of this process. It is nobody if the process has the number that its
// user namespace shows for all users whom it does not map: the files and processes of all of them
// would count as the user's own.
func thisUser() uint32 {
	uid := uint32(os.Geteuid())
	if uid != overflowUID {
		return uid
	}
	if b, err := os.ReadFile("/proc/self/uid_map"); err != nil || strings.Join(strings.Fields(string(b)), " ") != allUsers {
		return nobody
	}
	return uid
}

// runtimeDir is Runtime for a user whose runtime directory is base.
func runtimeDir(base string, uid uint32) (string, error) {
	st, err := os.Stat(base)
	if err != nil {
		return "", err
	}
	if err := above(base, st, uid); err != nil {
		return "", err
	}
	dir := filepath.Join(base, dirName)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	if st, err = os.Lstat(dir); err != nil {
		return "", err
	}
	if err := isType(dir, st, fs.ModeDir); err != nil {
		return "", err
	}
	if err := trusted(dir, st, uid, 0); err != nil {
		return "", err
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return "", fmt.Errorf("%s: %w", dir, err)
	}
	return dir, nil
}
