// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path"
	"slices"
	"sync"
	"syscall"

	"smcr/guard"
	"smcr/internal/cgroup"
	"smcr/quota"
	"smcr/userstack/divert"
)

// Limits of a [Table].
const (
	// maxEntries is how many entries there may be.
	maxEntries = 2048
	// DefaultMaxRuns is how many runs of a user there may be if the Config does not say it.
	DefaultMaxRuns = 256
)

// A Boundary takes the connections of the sockets of cgroups.
type Boundary interface {
	// Attach has the sockets of a cgroup announce.
	Attach(cgroup uint64, what divert.Does) error
	// Detach is the inverse of Attach.
	Detach(cgroup uint64) error
}

// Config is what a Table is made with.
type Config struct {
	// Top is where the cgroup v2 tree is mounted.
	Top string
	// Namespace is the cookie of the network namespace of the stack.
	Namespace uint64
	Boundary  Boundary
	// MaxRuns bounds the runs of a user other than root, together with those of the user's subordinate users. 0 means DefaultMaxRuns.
	MaxRuns int
	// Log and Guard are those of the stack. Guard may be nil.
	Log   *slog.Logger
	Guard *guard.Guard
}

// An Entry is a cgroup whose programs use SMC.
type Entry struct {
	// Path is that of the cgroup, as package cgroup has them.
	Path string
	// Cgroup is its number, or 0 while there is none with this path.
	Cgroup uint64
	// UID is the user who has asked for it.
	UID uint32
	// Run means that it was made for one program, and ends with that.
	Run bool
	divert.Does
}

// A Table is safe for concurrent use.
type Table struct {
	cfg   Config
	watch *watch

	mu      sync.Mutex
	closed  bool
	handed  bool              // another process has the cgroups
	entries map[string]*entry // by path
	runs    map[uint32]int    // how many entries of runs an account has: see quota.Account
	always  map[uint64]bool   // the cgroups whose entries have Always
}

type entry struct {
	Entry
	watched []int32 // what watch reports something of
}

// New makes a Table without entries.
func New(cfg Config) (*Table, error) {
	t := &Table{cfg: cfg, entries: map[string]*entry{}, runs: map[uint32]int{}, always: map[uint64]bool{}}
	var err error
	if t.watch, err = newWatch(); err != nil {
		return nil, err
	}
	if err := makeBelow(cfg.Top); err != nil {
		cfg.Log.Debug("programs of the topmost cgroup stay TCP", "err", err)
	}
	go cfg.Guard.Func("the watch on cgroups", func() { t.watch.run(t.changed, cfg.Log) })()
	return t, nil
}

// Close ends the watch. The cgroups stay, and their sockets go on to announce until the boundary is closed.
func (t *Table) Close() error {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	return t.watch.close()
}

// errHandedOver is the error of changes after HandOver.
var errHandedOver = fmt.Errorf("another process is the stack now, try again: %w", syscall.EBUSY)

// HandOver has another process have the cgroups: nothing changes here any more, and Attach, Detach and Enter fail with
// an error that matches syscall.EBUSY. What was attached stays so for the boundary.
func (t *Table) HandOver() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.handed = true
}

// TakeBack is the inverse of HandOver.
func (t *Table) TakeBack() {
	t.mu.Lock()
	t.handed = false
	all := slices.Collect(maps.Values(t.entries))
	t.mu.Unlock()
	t.changed(all) // meanwhile
}

// dir returns the folder of a cgroup.
func (t *Table) dir(p string) string { return path.Join(t.cfg.Top, p) }

// Attach adds an entry by its path, whether or not there is such a cgroup now, or changes it. The error matches
// os.ErrInvalid for what is no path of a cgroup, and syscall.ENOSPC if the table is full.
func (t *Table) Attach(e Entry) error {
	if !cgroup.Valid(e.Path) || !e.Connect && !e.Accept {
		return fmt.Errorf("attach cgroup %q: %w", e.Path, os.ErrInvalid)
	}
	if cgroup.IsRun(e.Path) {
		return fmt.Errorf("attach cgroup %q: the name is one of 'smcr run': %w", e.Path, os.ErrInvalid)
	}
	e.Cgroup, e.Run = 0, false
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.handed {
		return errHandedOver
	}
	have := t.entries[e.Path]
	if have == nil {
		return t.add(e)
	}
	e.Cgroup = have.Cgroup
	if e.Cgroup != 0 {
		if err := t.cfg.Boundary.Attach(e.Cgroup, e.Does); err != nil {
			return err
		}
	}
	have.UID, have.Does = e.UID, e.Does // the watch reads Path
	t.note(have)
	return nil
}

// note keeps always up to date. mu is held.
func (t *Table) note(e *entry) {
	if e.Always && e.Cgroup != 0 {
		t.always[e.Cgroup] = true
	} else {
		delete(t.always, e.Cgroup)
	}
}

// Always reports whether the entry of a cgroup has Always.
func (t *Table) Always(id uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.always[id]
}

// mayAdd returns why there must not be one more entry, or nil. mu is held.
func (t *Table) mayAdd(e *Entry) error {
	who := quota.Account(e.UID)
	switch {
	case t.closed:
		return os.ErrClosed
	case len(t.entries) >= maxEntries:
		return fmt.Errorf("%d cgroups are attached, which is the most: %w", maxEntries, syscall.ENOSPC)
	}
	if most := cmp.Or(t.cfg.MaxRuns, DefaultMaxRuns); e.Run && who != 0 && !quota.Fair(t.runs[who], 1, most, len(t.entries), maxEntries) {
		return fmt.Errorf("user %d has %d of at most %d programs under 'smcr run': %w", who, t.runs[who], most, syscall.EUSERS)
	}
	return nil
}

// add adds an entry. mu is held.
func (t *Table) add(e Entry) error {
	if err := t.mayAdd(&e); err != nil {
		return err
	}
	n := &entry{Entry: e}
	t.entries[e.Path] = n
	if e.Run {
		t.runs[quota.Account(e.UID)]++
	}
	if err := t.look(n); err != nil {
		t.drop(n)
		return err
	}
	return nil
}

// drop removes an entry. mu is held.
func (t *Table) drop(e *entry) {
	t.watch.forget(e)
	t.detach(e)
	delete(t.entries, e.Path)
	if e.Run {
		who := quota.Account(e.UID)
		if t.runs[who]--; t.runs[who] <= 0 {
			delete(t.runs, who)
		}
	}
}

func (t *Table) detach(e *entry) {
	if e.Cgroup == 0 {
		return
	}
	if err := t.cfg.Boundary.Detach(e.Cgroup); err != nil {
		t.cfg.Log.Warn("cannot detach a cgroup", "cgroup", e.Path, "err", err)
	}
	delete(t.always, e.Cgroup)
	e.Cgroup = 0
}

// Detach removes an entry. Its connections stay as they are. The error matches os.ErrNotExist if there is none.
func (t *Table) Detach(p string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.handed {
		return errHandedOver
	}
	e := t.entries[p]
	if e == nil {
		return fmt.Errorf("cgroup %q is not attached: %w", p, os.ErrNotExist)
	}
	t.drop(e)
	return nil
}

// Entries returns the entries by their paths.
func (t *Table) Entries() []Entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]Entry, 0, len(t.entries))
	for _, e := range t.entries {
		all = append(all, e.Entry)
	}
	slices.SortFunc(all, func(a, b Entry) int { return cmp.Compare(a.Path, b.Path) })
	return all
}

// changed looks at entries of which the kernel has reported something.
func (t *Table) changed(which []*entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range which {
		if t.closed || t.handed || t.entries[e.Path] != e {
			continue
		}
		if err := t.look(e); err != nil && !errors.Is(err, errOver) {
			t.cfg.Log.Warn("the programs of a cgroup stay TCP", "cgroup", e.Path, "err", err)
		}
	}
}

// errOver means that the programs of a run have ended.
var errOver = fmt.Errorf("the programs have ended: %w", os.ErrNotExist)

// look makes an entry what its cgroup is now. mu is held. The error matches errOver if the entry was one of a run
// that is over.
func (t *Table) look(e *entry) error {
	dir := t.dir(e.Path)
	// First the watch: a change behind it is reported.
	if err := t.watch.follow(e, t.cfg.Top); err != nil {
		return err
	}
	id, err := cgroup.ID(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if e.Run {
		there := false
		if err == nil {
			there, _ = cgroup.Populated(dir) // an error: it has just gone
		}
		if !there {
			t.over(e)
			return errOver
		}
	}
	if id == e.Cgroup {
		return nil
	}
	t.detach(e)
	if id == 0 {
		return nil
	}
	if err := t.cfg.Boundary.Attach(id, e.Does); err != nil {
		return err
	}
	e.Cgroup = id
	t.note(e)
	return nil
}

// over removes the cgroup of a run with its entry. That of a user is that user's: it goes with the session.
func (t *Table) over(e *entry) {
	t.drop(e)
	if err := os.Remove(t.dir(e.Path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.cfg.Log.Debug("the cgroup of a program stays", "cgroup", e.Path, "err", err)
	}
}
