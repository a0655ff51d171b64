// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

func TestNames(t *testing.T) {
	for in, want := range map[string]namespace{
		"serve-4026531840-7.log": {4026531840, 7}, "serve-4026531840-7.died.log": {4026531840, 7},
		"serve-.died.log": {}, "serve-.log": {}, "serve-1.log": {}, "serve-1-.log": {}, "serve--1.log": {}, "serve-1-2-3.log": {},
		"serve-1-2.log.gz": {}, "serve-1-2": {}, "1-2.log": {}, "serve-99999999999999999999-1.log": {}, "serve-0x1-1.log": {}, "": {},
	} {
		if got, ok := logNamespace(in); got != want && ok || ok != (want != namespace{}) {
			t.Errorf("log %q: %v, %v", in, got, ok)
		}
	}
	for in, want := range map[string]uint64{
		"net:[4026531840]": 4026531840, "mnt:[4026531841]": 0, "net:[": 0, "net:[]": 0, "net:[1": 0, "/": 0, "": 0,
	} {
		if got, ok := parseNamespace(in); got != want && ok || ok != (want != 0) {
			t.Errorf("link %q: %d, %v", in, got, ok)
		}
	}
}

// names returns the names of the files in a directory.
func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestOpenLog(t *testing.T) {
	testkind.System(t)
	dir := filepath.Join(t.TempDir(), "new")
	f := openLog(dir)
	if f == nil {
		t.Fatal("no log")
	}
	defer f.Close()
	name, err := logName(dir)
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(name); err != nil || st.Mode().Perm()&0o027 != 0 {
		t.Fatalf("%v, %v", st, err)
	}
	write := func(f *os.File, s string) {
		t.Helper()
		if _, err := f.WriteString(s); err != nil {
			t.Fatal(err)
		}
	}
	want := func(want string) {
		t.Helper()
		if got, err := os.ReadFile(name); err != nil || string(got) != want {
			t.Errorf("log %q, %v; want %q", got, err, want)
		}
	}
	write(f, "serving\n")
	// A second service that starts meanwhile, and fails, must not clear the log.
	g := openLog(dir)
	if g == nil {
		t.Fatal("no second log")
	}
	write(g, "already running\n")
	_ = g.Close()
	write(f, "still serving\n")
	want("serving\nalready running\nstill serving\n")
	// The lock belongs to the service, not to the process that started it: cat stands for
	// the service.
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = f
	if err := cmd.Start(); err != nil {
		t.Skipf("needs cat: %v", err)
	}
	_ = f.Close()
	if g = openLog(dir); g == nil {
		t.Fatal("no log")
	}
	_ = g.Close()
	want("serving\nalready running\nstill serving\n")
	_ = in.Close()
	_ = cmd.Wait()
	// After the end of the service, the next one starts with an empty log.
	if g = openLog(dir); g == nil {
		t.Fatal("no log")
	}
	defer g.Close()
	want("")
	if err := removeLog(dir, g); err != nil {
		t.Error(err)
	}
	if got := names(t, dir); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
	if err := removeLog(dir, g); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

func TestOpenLogNowhere(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if f := openLog(file); f != nil {
		_ = f.Close()
		t.Error("a log in a file")
	}
	// A symbolic link in place of the log is not followed.
	name, err := logName(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, name); err != nil {
		t.Fatal(err)
	}
	if f := openLog(dir); f != nil {
		_ = f.Close()
		t.Error("a log through a symbolic link")
	}
}

// TestRemoveLogElsewhere: a service removes only its own log.
func TestRemoveLogElsewhere(t *testing.T) {
	dir := t.TempDir()
	f := openLog(dir)
	if f == nil {
		t.Fatal("no log")
	}
	defer f.Close()
	other, err := os.Create(filepath.Join(dir, "other"))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := removeLog(dir, other); err != nil {
		t.Error(err)
	}
	if got := names(t, dir); len(got) != 2 {
		t.Errorf("left: %v", got)
	}
}

func TestRemoveStaleLogs(t *testing.T) {
	netnstest.Require(t) // to see every process
	pair := netnstest.New(t, netnstest.Options{})
	var st unix.Stat_t
	if err := unix.Stat(pair.A.Path(), &st); err != nil {
		t.Fatal(err)
	}
	mounted := fmt.Sprintf("serve-%d-1.log", st.Ino) // no process is in this namespace, but it is mounted
	dir := t.TempDir()
	own, err := logName(dir)
	if err != nil {
		t.Fatal(err)
	}
	gone, held := "serve-1-1.log", "serve-2-1.log" // no namespace has these inode numbers
	ns, err := ownNamespace()
	if err != nil {
		t.Fatal(err)
	}
	before := fmt.Sprintf("serve-%d-%d.died.log", ns.ino, ns.cookie+1) // the namespace had this inode number before, with another cookie
	keep := []string{"notes.txt", "serve-3-1.log.old", held, mounted, filepath.Base(own)}
	for _, name := range append(keep, gone, before) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "serve-4-1.log"), 0o700); err != nil {
		t.Fatal(err)
	}
	keep = append(keep, "serve-4-1.log")
	service, err := os.Open(filepath.Join(dir, held))
	if err != nil {
		t.Fatal(err)
	}
	defer service.Close()
	if err := unix.Flock(int(service.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	removeStaleLogs(dir)
	left := map[string]bool{}
	for _, name := range names(t, dir) {
		left[name] = true
	}
	want := map[string]bool{}
	for _, name := range keep {
		want[name] = true
	}
	if d := cmp.Diff(want, left); d != "" {
		t.Errorf("left (-want +got):\n%s", d)
	}
	// Without its namespace or its service, the log is removed.
	if err := pair.Close(); err != nil {
		t.Fatal(err)
	}
	_ = service.Close()
	for _, name := range []string{held, mounted} {
		testkind.Eventually(t, name+" is removed", func() (any, bool) {
			removeStaleLogs(dir)
			ns, _ := logNamespace(name)
			alive, err := namespaces()
			// The kernel may have given the number to a new namespace.
			return err, !exists(filepath.Join(dir, name)) || err == nil && alive[ns.ino]
		})
	}
}
