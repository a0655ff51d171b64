// SPDX-License-Identifier: Apache-2.0

package place

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A process that was killed keeps its descriptors, and so the lock, as long as one of its threads
// is in a system call that no signal ends. A program can cause that: it holds the lock of its TCP
// socket by sending memory whose pages never come, and the thread waits for this lock. So the
// file also says which processes have the lock. If none of these will ever run again, the lock
// is free, whatever the kernel says, and the next stack makes a new file.
//
// Every process is in the file before it can believe that it has the place: a stack from the
// moment when it gets the lock, and one that takes over from the moment when it has the
// descriptor. Whoever reads the file to take the lock, changes or removes it has another lock
// of the file meanwhile (fcntl(2), F_OFD_SETLK), which does not depend on the first one. So
// the processes that are read there are all that there are, and the name of the file is removed
// only while it is that of this file. A release that does not know this leaves a file
// without processes: then the lock is what the kernel says.

const (
	// inoWidth is more than what Sweep reads of the file. So the first line alone counts for
	// a release that knows only the inode number of the network namespace.
	inoWidth = 40
	// maxHolders bounds what is read of the file. There are two while one takes over.
	maxHolders = 4096
)

// A holder is a process that may have the lock. The numbers of processes and their times have
// a meaning only in the namespaces of the process that has written them.
type holder struct {
	pid, start uint64 // the time of the start, because numbers are used again
	pidns      uint64 // inode numbers of namespaces
	timens     uint64
}

// self returns this process.
func self() (holder, error) {
	h := holder{pid: uint64(os.Getpid()), pidns: namespace("pid"), timens: namespace("time")}
	// A file system of another PID namespace would show other processes.
	if name, err := os.Readlink("/proc/self"); err != nil || name != strconv.FormatUint(h.pid, 10) {
		return h, errors.Join(errors.New("/proc does not show this process"), err)
	}
	t, err := readThread("/proc/self")
	h.start = t.start
	return h, err
}

// namespace returns the inode number of a namespace of this process, or 0.
func namespace(kind string) uint64 {
	var st unix.Stat_t
	if unix.Stat("/proc/self/ns/"+kind, &st) != nil {
		return 0
	}
	return st.Ino
}

// maxReads bounds how often the threads of a process are listed, which may make new ones without end.
const maxReads = 100

// dead reports whether no thread of the process will ever run again. A process of which this one
// cannot know that is not dead.
func (h holder) dead(me holder) bool {
	if h.pidns != me.pidns || h.timens != me.timens || h.pidns == 0 || h.pid == 0 {
		return false
	}
	// A stack that serves may not use kill(2).
	switch fd, err := unix.PidfdOpen(int(h.pid), 0); {
	case err == nil:
		unix.Close(fd)
	case errors.Is(err, unix.ESRCH):
		return true
	}
	dir := fmt.Sprint("/proc/", h.pid)
	t, err := readThread(dir)
	if err != nil {
		return false // hidden, or just gone: the next attempt knows more
	}
	if t.start != h.start {
		return true // another process has the number
	}
	// A thread that had made another one before it was killed may have been read first, and those of a process that dies are gone from
	// one moment to the next.
	var before []string
	for range maxReads {
		threads, err := os.ReadDir(filepath.Join(dir, "task"))
		if err != nil {
			return false
		}
		var names []string
		for _, e := range threads {
			switch t, err := readThread(filepath.Join(dir, "task", e.Name())); {
			case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH):
				continue
			case err != nil || !t.ended:
				return false
			}
			names = append(names, e.Name())
		}
		if len(names) > 0 && slices.Equal(names, before) {
			return true
		}
		before = names
	}
	return false
}

// A thread is what matters of a directory of proc(5).
type thread struct {
	start uint64
	ended bool // it runs no instruction of its program any more
}

func readThread(dir string) (t thread, err error) {
	b, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return t, err
	}
	// The name of the program, in parentheses, can have any characters.
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	const state, flags, start = 0, 6, 19
	if len(f) <= start {
		return t, fmt.Errorf("%s/stat: %d fields", dir, len(f))
	}
	if t.start, err = strconv.ParseUint(string(f[start]), 10, 64); err != nil {
		return t, err
	}
	bits, err := strconv.ParseUint(string(f[flags]), 10, 64)
	if err != nil {
		return t, err
	}
	const exiting = 4 // PF_EXITING of linux/sched.h
	switch f[state][0] {
	case 'Z', 'X':
		t.ended = true
		return t, nil
	}
	t.ended = bits&exiting != 0 || killed(dir)
	return t, nil
}

// killed reports whether a thread will act on SIGKILL before it returns to its program. Nothing
// can take back a SIGKILL. It goes to each thread when the process is killed or exits.
func killed(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return false
	}
	_, after, ok := bytes.Cut(b, []byte("\nSigPnd:"))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	pending, perr := strconv.ParseUint(string(bytes.TrimSpace(line)), 16, 64)
	return ok && perr == nil && pending&(1<<(unix.SIGKILL-1)) != 0
}

// readHolders returns the processes that the file names, and the first line.
func readHolders(f *os.File) (ino []byte, all []holder, err error) {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxHolders))
	if err != nil {
		return nil, nil, err
	}
	ino, rest, _ := bytes.Cut(b, []byte("\n"))
	for len(rest) > 0 {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		var h holder
		n, err := fmt.Sscan(string(line), &h.pid, &h.start, &h.pidns, &h.timens)
		if !whole || err != nil || n != 4 {
			return bytes.TrimSpace(ino), nil, fmt.Errorf("%s: not a process: %q", f.Name(), line)
		}
		all, rest = append(all, h), after
	}
	return bytes.TrimSpace(ino), all, nil
}

// writeHolders replaces what is in the file.
func writeHolders(f *os.File, ino []byte, all []holder) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%-*s\n", inoWidth, ino)
	for _, h := range all {
		fmt.Fprintln(&b, h.pid, h.start, h.pidns, h.timens)
	}
	// A file that was written in part names no process, or none that is not there.
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt(b.Bytes(), 0)
	return err
}

// holdersDead reports whether the processes that have locked f are dead. It returns them.
func holdersDead(f *os.File) (all []holder, dead bool) {
	_, all, err := readHolders(f)
	if err != nil || len(all) == 0 {
		return nil, false
	}
	me, err := self()
	if err != nil {
		return nil, false
	}
	for _, h := range all {
		if !h.dead(me) {
			return nil, false
		}
	}
	return all, true
}

// remains reports whether the kernel still has the process, which is dead.
func (h holder) remains() bool {
	t, err := readThread(fmt.Sprint("/proc/", h.pid))
	return err == nil && t.start == h.start
}

// turn has other processes wait that want to lock, change or remove f. done ends it. The error
// is errTurn if it is the turn of another one, and errAgain if the file is not name any more.
func turn(f *os.File, name string) (done func(), err error) {
	set := func(kind int16) error {
		return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind})
	}
	switch err := set(unix.F_WRLCK); {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EACCES):
		return nil, errTurn
	case err != nil:
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	done = func() { _ = set(unix.F_UNLCK) }
	if !named(f, name) {
		done()
		return nil, errAgain
	}
	return done, nil
}

// inTurn waits for the turn of this process.
func inTurn(f *os.File, name string) (done func(), err error) {
	for end := time.Now().Add(takeWait); ; time.Sleep(takeTick) {
		if done, err = turn(f, name); !errors.Is(err, errTurn) || time.Now().After(end) {
			return done, err
		}
	}
}

// hold changes the processes that the file of the lock names, with this process in them or not.
// alone removes the others.
func (c *Claim) hold(mine, alone bool) error {
	return holdFile(c.lock, filepath.Join(c.dir, lockName), mine, alone)
}

func holdFile(lock *os.File, name string, mine, alone bool) error {
	// A descriptor of its own: the other process has the one of lock, too.
	f, err := os.OpenFile(name, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if !named(lock, name) {
		return errAgain
	}
	done, err := inTurn(f, name)
	if err != nil {
		return err
	}
	defer done()
	ino, all, err := readHolders(f)
	if err != nil {
		return err
	}
	me := known()
	switch {
	case alone:
		all = nil
	case len(all) == 0:
		return nil // the other process is not known, so this one alone says nothing
	case len(me) == 0:
		return writeHolders(f, ino, nil)
	default:
		all = slices.DeleteFunc(all, func(h holder) bool { return h == me[0] })
	}
	if mine {
		all = append(all, me...)
	}
	return writeHolders(f, ino, all)
}

// known returns this process, or nothing if it cannot say who it is to others. A file without
// processes says that they live.
func known() []holder {
	h, err := self()
	if err != nil {
		return nil
	}
	return []holder{h}
}
