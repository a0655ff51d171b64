// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/cgroup"
	"smcr/internal/place"
	"smcr/internal/testing/testkind"
	"smcr/userstack/divert"
)

// announcer is a Boundary that remembers.
type announcer struct {
	mu  sync.Mutex
	has map[uint64]string
}

func (a *announcer) Attach(id uint64, what divert.Does) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.has[id] = fmt.Sprint(what.Connect, " ", what.Accept)
	return nil
}

func (a *announcer) Detach(id uint64) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.has[id]; !ok {
		return errors.New("not attached")
	}
	delete(a.has, id)
	return nil
}

func (a *announcer) get(id uint64) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.has[id]
}

func (a *announcer) len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.has)
}

// bed is a Table with a part of the cgroup tree of its own.
type bed struct {
	t    *testing.T
	a    *announcer
	tree *Table
	part string // path of its part
	ns   uint64
}

func newBed(t *testing.T) *bed {
	t.Helper()
	testkind.System(t)
	top, err := cgroup.Top()
	if err != nil {
		t.Skip(err)
	}
	b := &bed{t: t, a: &announcer{has: map[uint64]string{}}, part: fmt.Sprintf("/smcr-test-attach-%d", os.Getpid())}
	if err := os.Mkdir(top+b.part, 0o755); err != nil {
		t.Skip("the cgroup v2 tree is not for this process to write: ", err)
	}
	t.Cleanup(func() {
		eventually(t, "the cgroups of the test go", func() error { return removeAll(top + b.part) })
	})
	if b.ns, err = place.Cookie(); err != nil {
		t.Fatal(err)
	}
	b.tree = b.table()
	return b
}

func (b *bed) table() *Table {
	b.t.Helper()
	top, err := cgroup.Top()
	if err != nil {
		b.t.Fatal(err)
	}
	table, err := New(Config{Top: top, Namespace: b.ns, Boundary: b.a, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { table.Close() })
	return table
}

// eventually waits until f has no error.
func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	testkind.Eventually(t, what, func() (any, bool) { err := f(); return err, err == nil })
}

// removeAll removes a cgroup with those below it.
func removeAll(dir string) error {
	all, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range all {
		if e.IsDir() {
			err = errors.Join(err, removeAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, os.Remove(dir))
}

func (b *bed) mkdir(p string) uint64 {
	b.t.Helper()
	dir := b.tree.dir(b.part + p)
	if err := os.Mkdir(dir, 0o755); err != nil {
		b.t.Fatal(err)
	}
	id, err := cgroup.ID(dir)
	if err != nil {
		b.t.Fatal(err)
	}
	return id
}

func (b *bed) rmdir(p string) {
	b.t.Helper()
	if err := os.Remove(b.tree.dir(b.part + p)); err != nil {
		b.t.Fatal(err)
	}
}

// want waits until the boundary announces for a cgroup as it should; "" means that it does not.
func (b *bed) want(id uint64, want string) {
	b.t.Helper()
	eventually(b.t, "the cgroup is attached as it should be", func() error {
		if got := b.a.get(id); got != want {
			return fmt.Errorf("%d: %q, want %q; entries %+v", id, got, want, b.tree.Entries())
		}
		return nil
	})
}

// process starts a process of a user that ends with stop.
func (b *bed) process(uid uint32) (pid int, stop func()) {
	b.t.Helper()
	cmd := exec.Command("cat")
	if uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	}
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.t.Fatal(err)
	}
	// Not the top of the tree, where the kernel lets nobody but root make cgroups.
	if err := cgroup.Enter(b.tree.dir(b.part), cmd.Process.Pid); err != nil {
		b.t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		in.Close()
		_ = cmd.Wait()
	})
	b.t.Cleanup(stop)
	return cmd.Process.Pid, stop
}

// TestByPath: a cgroup that comes, goes and comes again is attached while it is there.
func TestByPath(t *testing.T) {
	b := newBed(t)
	e := Entry{Path: b.part + "/a/b", UID: 7, Does: divert.Does{Connect: true}}
	if err := b.tree.Attach(e); err != nil {
		t.Fatal(err)
	}
	if got := b.tree.Entries(); len(got) != 1 || got[0] != e {
		t.Errorf("%+v", got)
	}
	for range 3 {
		b.mkdir("/a")
		id := b.mkdir("/a/b")
		b.want(id, "true false")
		b.mkdir("/a/other")
		b.rmdir("/a/b")
		b.want(id, "")
		id = b.mkdir("/a/b")
		b.want(id, "true false")
		if got := b.tree.Entries(); len(got) != 1 || got[0].Cgroup != id {
			t.Errorf("%+v", got)
		}
		e.Accept = true
		if err := b.tree.Attach(e); err != nil { // changes it
			t.Error(err)
		}
		b.want(id, "true true")
		e.Accept = false
		if err := b.tree.Attach(e); err != nil {
			t.Error(err)
		}
		b.rmdir("/a/b")
		b.rmdir("/a/other")
		b.rmdir("/a")
		b.want(id, "")
	}
	b.mkdir("/a")
	id := b.mkdir("/a/b")
	b.want(id, "true false")
	for _, always := range []bool{true, false, true} {
		e.Always = always
		if err := b.tree.Attach(e); err != nil || b.tree.Always(id) != always {
			t.Error(err, always)
		}
	}
	if err := b.tree.Detach(e.Path); err != nil || b.tree.Always(id) {
		t.Error(err)
	}
	if n := b.a.len(); n != 0 {
		t.Errorf("%d cgroups are attached", n)
	}
	if err := b.tree.Detach(e.Path); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestWrongPaths(t *testing.T) {
	b := newBed(t)
	for _, p := range []string{"", "a", "/a/../b", "/a/", "//a", "/..", "/a\x00b", "/sys/fs/cgroup/a", b.part + "/smcr-run-1-x"} {
		if err := b.tree.Attach(Entry{Path: p, Does: divert.Does{Accept: true}}); !errors.Is(err, os.ErrInvalid) {
			t.Errorf("%q: %v", p, err)
		}
	}
	if err := b.tree.Attach(Entry{Path: b.part}); !errors.Is(err, os.ErrInvalid) {
		t.Error(err)
	}
	if n := len(b.tree.Entries()); n != 0 {
		t.Errorf("%d entries", n)
	}
}

// TestRun: the cgroup of a run is below that of the process, and goes with it.
func TestRun(t *testing.T) {
	b := newBed(t)
	pid, stop := b.process(1234)
	e, err := b.tree.Enter(&Process{PID: pid, UID: 1234, FD: -1, Namespace: b.ns}, false)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(e.Path, b.part+"/"+cgroup.RunPrefix) || !e.Run || e.UID != 1234 || b.a.get(e.Cgroup) != "true true" {
		t.Errorf("%+v", e)
	}
	if p, err := cgroup.Of(pid); p != e.Path || err != nil {
		t.Error(p, err)
	}
	if again, err := b.tree.Enter(&Process{PID: pid, UID: 1234, FD: -1, Namespace: b.ns}, false); again != e || err != nil {
		t.Errorf("%+v, %v", again, err)
	}
	stop()
	eventually(t, "the cgroup goes with its process", func() error {
		_, err := os.Stat(b.tree.dir(e.Path))
		if n := len(b.tree.Entries()); n != 0 || !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%d entries, %v", n, err)
		}
		return nil
	})
	b.want(e.Cgroup, "")
}

// TestRunOf: the run of a process is found for its user, while it lasts.
func TestRunOf(t *testing.T) {
	b := newBed(t)
	pid, stop := b.process(1234)
	who := &Process{PID: pid, UID: 1234, FD: -1, Namespace: b.ns}
	if _, err := b.tree.RunOf(who); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if err := b.tree.Attach(Entry{Path: b.part, Does: divert.Does{Accept: true}}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.tree.RunOf(who); !errors.Is(err, os.ErrNotExist) { // attached, and no run
		t.Error(err)
	}
	e, err := b.tree.Enter(who, false)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := b.tree.RunOf(who); got != e || err != nil {
		t.Errorf("%+v, %v, want %+v", got, err, e)
	}
	other := *who
	other.UID++
	if _, err := b.tree.RunOf(&other); !errors.Is(err, os.ErrPermission) {
		t.Error(err)
	}
	b.tree.HandOver() // what the program asks of the old stack, it still gets
	if got, err := b.tree.RunOf(who); got != e || err != nil {
		t.Errorf("%+v, %v, want %+v", got, err, e)
	}
	b.tree.TakeBack()
	stop()
	if _, err := b.tree.RunOf(who); err == nil {
		t.Error("a process that has ended is found")
	}
	b.want(e.Cgroup, "")
	if err := b.tree.Detach(b.part); err != nil {
		t.Error(err)
	}
}

// TestRunOfOthers: a user moves no process of another one, and has only so many.
func TestRunOfOthers(t *testing.T) {
	b := newBed(t)
	pid, stop := b.process(1234)
	for _, uid := range []uint32{0, 1235} {
		if _, err := b.tree.Enter(&Process{PID: pid, UID: uid, FD: -1, Namespace: b.ns}, false); !errors.Is(err, os.ErrPermission) {
			t.Error(uid, err)
		}
	}
	b.tree.mu.Lock()
	b.tree.runs[1234] = DefaultMaxRuns
	b.tree.mu.Unlock()
	if _, err := b.tree.Enter(&Process{PID: pid, UID: 1234, FD: -1, Namespace: b.ns}, false); !errors.Is(err, syscall.EUSERS) {
		t.Error(err)
	}
	if p, err := cgroup.Of(pid); p != b.part || err != nil { // it is back
		t.Error(p, err)
	}
	stop()
	for _, gone := range []int{pid, 0, -1} {
		if _, err := b.tree.Enter(&Process{PID: gone, UID: 1234, FD: -1, Namespace: b.ns}, false); err == nil {
			t.Errorf("process %d has entered", gone)
		}
	}
	if n := len(b.tree.Entries()); n != 0 {
		t.Errorf("%d entries", n)
	}
}

// TestFind: the next stack has the runs of this one, and removes what is left of those that are over.
func TestFind(t *testing.T) {
	b := newBed(t)
	pid, stop := b.process(0)
	e, err := b.tree.Enter(&Process{PID: pid, UID: 0, FD: -1, Namespace: b.ns}, false)
	if err != nil {
		t.Fatal(err)
	}
	b.tree.Close()
	over := "/" + newRun(b.ns)
	b.mkdir(over)
	other := "/" + newRun(b.ns+1) // of another network namespace
	b.mkdir(other)
	busy := "/" + newRun(b.ns+1)
	b.mkdir(busy)
	otherPID, otherStop := b.process(0)
	if err := cgroup.Enter(b.tree.dir(b.part+busy), otherPID); err != nil {
		t.Fatal(err)
	}
	next := b.table()
	if err := next.Find(); err != nil {
		t.Fatal(err)
	}
	if got := next.Entries(); len(got) != 1 || got[0] != e {
		t.Errorf("%+v, want %+v", got, e)
	}
	for p, want := range map[string]error{over: fs.ErrNotExist, other: fs.ErrNotExist, busy: nil} {
		if _, err := os.Stat(next.dir(b.part + p)); !errors.Is(err, want) {
			t.Errorf("%s: %v", p, err)
		}
	}
	stop()
	otherStop()
	b.want(e.Cgroup, "")
	eventually(t, "no cgroup of a run is left", func() error {
		sweep(next.dir(b.part))
		all, err := filepath.Glob(next.dir(b.part) + "/" + cgroup.RunPrefix + "*")
		if len(all) > 0 {
			return fmt.Errorf("%q", all)
		}
		return err
	})
}

func TestNames(t *testing.T) {
	for _, ns := range []uint64{1, 4026531840, 1<<64 - 1} {
		if n := newRun(ns); !cgroup.IsRun(n) || !ofNamespace(n, ns) || ns+1 != AnyNamespace && ofNamespace(n, ns+1) || !ofNamespace(n, AnyNamespace) || n == newRun(ns) {
			t.Error(n)
		}
	}
	for _, n := range []string{"", "smcr", "smcr-run-", "smcr-run-5", "smcr-run-x-5", "smcr-run--5", "x-smcr-run-5-y"} {
		if ofNamespace(n, 5) || ofNamespace(n, 0) {
			t.Error(n)
		}
	}
}

// FuzzEvents reads what inotify could report.
func FuzzEvents(f *testing.F) {
	event := func(id int32, mask uint32, name string) (b []byte) {
		b = binary.NativeEndian.AppendUint32(b, uint32(id))
		b = binary.NativeEndian.AppendUint32(b, mask)
		b = binary.NativeEndian.AppendUint32(b, 0)
		b = binary.NativeEndian.AppendUint32(b, uint32(len(name)))
		return append(b, name...)
	}
	f.Add(append(event(1, unix.IN_CREATE, "a\x00\x00\x00"), event(2, unix.IN_IGNORED, "")...))
	f.Add(event(-1, unix.IN_Q_OVERFLOW, ""))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, c := &entry{Entry: Entry{Path: "/a"}, watched: []int32{1, 2}}, &entry{Entry: Entry{Path: "/c"}, watched: []int32{2}}
		w := &watch{whom: map[int32][]*entry{1: {a}, 2: {a, c}}}
		for _, e := range w.read(b) {
			if e != a && e != c {
				t.Error(e)
			}
		}
	})
}

// TestHandOver: while another table has the cgroups, this one changes nothing; if it takes them back, it has missed
// nothing.
func TestHandOver(t *testing.T) {
	b := newBed(t)
	pid, stop := b.process(0)
	run, err := b.tree.Enter(&Process{PID: pid, UID: 0, FD: -1, Namespace: b.ns}, false)
	if err != nil {
		t.Fatal(err)
	}
	e := Entry{Path: b.part + "/a", Does: divert.Does{Accept: true}}
	if err := b.tree.Attach(e); err != nil {
		t.Fatal(err)
	}
	b.tree.HandOver()
	_, enter := b.tree.Enter(&Process{PID: pid, UID: 0, FD: -1, Namespace: b.ns}, false)
	for _, err := range []error{enter, b.tree.Attach(e), b.tree.Detach(e.Path)} {
		if !errors.Is(err, syscall.EBUSY) {
			t.Error(err)
		}
	}
	next := b.table()
	if err := next.Find(); err != nil {
		t.Fatal(err)
	}
	if got := next.Entries(); len(got) != 1 || got[0] != run {
		t.Errorf("%+v, want %+v", got, run)
	}
	id := b.mkdir("/a")
	stop()
	eventually(t, "the next table removes the cgroup of the run", func() error {
		if _, err := os.Stat(next.dir(run.Path)); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w, %+v", err, next.Entries())
		}
		return nil
	})
	if got := b.tree.Entries(); len(got) != 2 || got[0].Cgroup != 0 {
		t.Errorf("a table that has handed over changes: %+v", got)
	}
	b.tree.TakeBack()
	b.want(id, "false true")
	if got := b.tree.Entries(); len(got) != 1 || got[0].Cgroup != id {
		t.Errorf("%+v", got)
	}
	if err := b.tree.Detach(e.Path); err != nil {
		t.Error(err)
	}
	b.rmdir("/a")
}

// TestReused: a process that has ended is not moved, nor is one that has its number now; one that was moved is back.
func TestReused(t *testing.T) {
	b := newBed(t)
	pid, stop := b.process(1234)
	gone := exec.Command("true")
	if err := gone.Start(); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(gone.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := gone.Wait(); err != nil {
		t.Fatal(err)
	}
	p := &Process{PID: pid, UID: 1234, FD: fd, Namespace: b.ns}
	if _, err := b.tree.Enter(p, false); !errors.Is(err, syscall.ESRCH) {
		t.Error(err)
	}
	if at, err := cgroup.Of(pid); at != b.part || err != nil {
		t.Error(at, err)
	}
	b.mkdir("/wrong")
	dir := b.tree.dir(b.part + "/wrong")
	if err := p.move(b.tree.cfg.Top, dir); !errors.Is(err, syscall.ESRCH) {
		t.Error(err)
	}
	own, err := cgroup.Of(os.Getpid())
	if at, aerr := cgroup.Of(pid); at != own || err != nil || aerr != nil {
		t.Errorf("it is in %s, %v, want that of its parent %s, %v", at, aerr, own, err)
	}
	if err := os.Remove(dir); err != nil {
		t.Error(err)
	}
	stop()
}

// TestUserOf: the user of a run that root has made is noted at the cgroup, and that of others is its owner.
func TestUserOf(t *testing.T) {
	b := newBed(t)
	b.mkdir("/a")
	dir := b.tree.dir(b.part + "/a")
	for _, owner := range []uint32{0, 7} {
		if got, noted := userOf(dir, owner); got != owner || noted {
			t.Error(got)
		}
	}
	noteUser(dir, 1234)
	for owner, want := range map[uint32]uint32{0: 1234, 7: 7, 1234: 1234} {
		if got, noted := userOf(dir, owner); got != want || noted != (owner != 7) {
			t.Errorf("of %d: %d, want %d", owner, got, want)
		}
	}
	if err := unix.Setxattr(dir, userAttr, []byte("x"), 0); err != nil {
		t.Fatal(err)
	}
	if got, noted := userOf(dir, 0); got != 0 || noted {
		t.Error(got)
	}
	b.rmdir("/a")
}
