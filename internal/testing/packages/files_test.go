// SPDX-License-Identifier: Apache-2.0

package packages

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// A listing has what is at each path of a machine: type, mode, owner, and content or target.
type listing map[string]string

// notFiles are the directories in which no package has files. /run is listed: the stack has its
// sockets there.
var notFiles = []string{"/proc", "/sys", "/dev", "/tmp"}

// books are files in which the system writes what was done, also if it is undone.
var books = []string{
	"/var/lib/dpkg", "/var/log", "/var/lib/rpm",
	"/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-", "/etc/.pwd.lock",
	"/run/lock", "/run/ready", "/run/netns", "/run/systemd",
}

// under reports whether a path is one of those of the list, or below one.
func under(list []string, path string) bool {
	return slices.ContainsFunc(list, func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") })
}

// list lists the files of the machine.
func (m *machine) list() listing {
	m.t.Helper()
	l := listing{}
	top := m.path("") + "/" // with the slash, because it is a link
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := "/" + strings.TrimPrefix(path, top)
		switch {
		case under(notFiles, name):
			return fs.SkipDir
		case under(books, name):
			return nil
		}
		l[name], err = describe(path)
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return l
}

// describe describes a file.
func describe(path string) (string, error) {
	st, err := os.Lstat(path)
	if err != nil {
		return "", err
	}
	content := ""
	switch {
	case st.Mode().Type() == fs.ModeSymlink:
		content, err = os.Readlink(path)
	case st.Mode().IsRegular():
		var b []byte
		b, err = os.ReadFile(path)
		content = fmt.Sprintf("%x", sha256.Sum256(b))
	}
	owner := st.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%v %d:%d %s", st.Mode(), owner.Uid, owner.Gid, content), err
}

// wantSame checks that a listing has the same files as an earlier one. The expected differences
// are paths, with what is below them.
func (l listing) wantSame(t testing.TB, before listing, expected ...string) {
	t.Helper()
	var all []string
	for path := range before {
		all = append(all, path)
	}
	for path := range l {
		if _, ok := before[path]; !ok {
			all = append(all, path)
		}
	}
	slices.Sort(all)
	for _, path := range all {
		if was, is := before[path], l[path]; was != is && !under(expected, path) {
			t.Errorf("%s: now %q, before %q", path, is, was)
		}
	}
	for _, path := range expected {
		if !slices.ContainsFunc(all, func(p string) bool { return under([]string{path}, p) && before[p] != l[p] }) {
			t.Errorf("%s is as before", path)
		}
	}
}
