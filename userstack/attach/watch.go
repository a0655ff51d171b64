// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"smcr/internal/cgroup"
)

// watch reports changes of the cgroups of entries (inotify(7)).
type watch struct {
	file *os.File // has the descriptor fd
	fd   int

	mu   sync.Mutex
	whom map[int32][]*entry // by watch descriptor
}

func newWatch() (*watch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("attach: %w", os.NewSyscallError("inotify_init", err))
	}
	return &watch{file: os.NewFile(uintptr(fd), "inotify"), fd: fd, whom: map[int32][]*entry{}}, nil
}

func (w *watch) close() error {
	w.mu.Lock()
	w.fd = -1 // the number may be that of another file soon
	w.mu.Unlock()
	return w.file.Close()
}

// follow has run report the next changes of an entry. For that of a run, this is whether there are processes. For
// another one, this is that the cgroup, or the first one of its path that is missing, comes or goes.
func (w *watch) follow(e *entry, top string) error {
	dir := path.Join(top, e.Path)
	if e.Run {
		err := w.add(e, path.Join(dir, cgroup.Events), unix.IN_MODIFY)
		if errors.Is(err, unix.ENOENT) {
			return nil // it is over
		}
		return err
	}
	for dir != path.Clean(top) {
		dir = path.Dir(dir)
		err := w.add(e, dir, unix.IN_CREATE|unix.IN_DELETE|unix.IN_ONLYDIR)
		if !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// add watches a file or folder for an entry.
func (w *watch) add(e *entry, name string, events uint32) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	wd, err := unix.InotifyAddWatch(w.fd, name, events)
	if err != nil {
		return &os.PathError{Op: "watch", Path: name, Err: err}
	}
	id := int32(wd)
	if !slices.Contains(w.whom[id], e) {
		w.whom[id] = append(w.whom[id], e)
		e.watched = append(e.watched, id)
	}
	return nil
}

// forget ends the watch for an entry.
func (w *watch) forget(e *entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range e.watched {
		rest := slices.DeleteFunc(w.whom[id], func(o *entry) bool { return o == e })
		if len(rest) > 0 {
			w.whom[id] = rest
			continue
		}
		if _, there := w.whom[id]; there {
			delete(w.whom, id)
			_, _ = unix.InotifyRmWatch(w.fd, uint32(id)) // it may have gone with the folder
		}
	}
	e.watched = nil
}

// run calls changed with the entries of each change, until close is called.
func (w *watch) run(changed func([]*entry), log *slog.Logger) {
	buf := make([]byte, 16<<10)
	for {
		n, err := w.file.Read(buf)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				log.Error("changes of cgroups are not seen any more", "err", err)
			}
			return
		}
		if which := w.read(buf[:n]); len(which) > 0 {
			changed(which)
		}
	}
}

// read returns the entries of events.
func (w *watch) read(b []byte) (which []*entry) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(b) >= unix.SizeofInotifyEvent {
		id, mask := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
		name := int(binary.NativeEndian.Uint32(b[12:]))
		b = b[unix.SizeofInotifyEvent:]
		b = b[min(name, len(b)):]
		if mask&unix.IN_Q_OVERFLOW != 0 { // events were lost: of whom is not known
			for _, all := range w.whom {
				which = append(which, all...)
			}
			continue
		}
		which = append(which, w.whom[id]...)
		if mask&unix.IN_IGNORED != 0 { // what was watched is gone
			for _, e := range w.whom[id] {
				e.watched = slices.DeleteFunc(e.watched, func(o int32) bool { return o == id })
			}
			delete(w.whom, id)
		}
	}
	slices.SortFunc(which, func(a, b *entry) int { return strings.Compare(a.Path, b.Path) })
	return slices.Compact(which)
}
