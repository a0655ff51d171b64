// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// takeWait is how long Take waits for a stack that has the lock but does not
	// listen, because it starts or ends, before it returns ErrTaken. It is also how long it
	// waits for the kernel to release the lock of a process that was killed.
	takeWait = time.Second
	takeTick = 5 * time.Millisecond
	// maxPath is how long the path of a socket may be (unix(7), sun_path).
	maxPath = 107
)

var (
	// errAgain means that the lock was removed, or its directory, while it was taken.
	errAgain = errors.New("the directory was removed")
	// errTurn means that another process is taking, changing or removing the lock.
	errTurn = fmt.Errorf("%w, or just takes it", ErrTaken)
	// errDead means that the processes that have the lock are dead.
	errDead = fmt.Errorf("%w: it is dead, and the kernel has not ended it", ErrTaken)
)

// A Claim is the right of a stack to use the place. No other stack gets it until Close, or
// until the process ends.
type Claim struct {
	dir  string
	lock *os.File
	view view
	base string
	dead []holder // see Dead

	mu        sync.Mutex
	listeners map[string]*net.UnixListener // by name
	closed    bool
	hidden    bool     // the sockets do not have their names yet
	left      bool     // another process has the place
	part      *os.File // locked: see Part
	partN     int
	guarded   *os.File // see guard
}

// Take takes the place of the stack. The error matches [ErrTaken] if another
// stack has it.
func Take() (*Claim, error) {
	v, err := current()
	if err != nil {
		return nil, err
	}
	return v.take()
}

func (v *view) take() (*Claim, error) {
	c, err := v.takeAt(v.root)
	if err == nil || !v.denied(err) {
		return c, err
	}
	// This user may not read the lock of root, so try to connect.
	if v.listened(v.root) {
		return nil, ErrTaken
	}
	c, oerr := v.takeAt(v.own)
	if oerr != nil && !errors.Is(oerr, ErrTaken) {
		return nil, fmt.Errorf("no place for the sockets of the stack: %w; %w: set XDG_RUNTIME_DIR to a directory of this user", err, oerr)
	}
	return c, oerr
}

// denied reports whether err means that this user may not write to the directory of root. A
// read-only file system does not count for root: the other users would not find its stack
// in another directory.
func (v *view) denied(err error) bool {
	if _, ok := errors.AsType[*UntrustedError](err); ok {
		return false
	}
	return errors.Is(err, fs.ErrPermission) || v.uid != 0 && errors.Is(err, unix.EROFS)
}

func (v *view) takeAt(base string) (*Claim, error) {
	if base == rootBase {
		// A small container may not have this directory.
		if err := os.MkdirAll(base, 0o755); err != nil {
			return nil, err
		}
	}
	end := time.Now().Add(takeWait)
	var dead []holder
	for replace := false; ; {
		var lock *os.File
		err := v.makeDirs(base)
		if err == nil {
			lock, err = v.takeLock(base, &dead, replace)
		}
		switch {
		case err == nil:
			c := &Claim{dir: v.dir(base), lock: lock, view: *v, base: base, dead: dead, listeners: map[string]*net.UnixListener{}}
			err := c.alone()
			if err == nil {
				err = removeSockets(c.dir)
			}
			if err != nil {
				_ = c.Close()
				return nil, err
			}
			return c, nil
		case errors.Is(err, errTurn):
			if time.Now().After(end) {
				return nil, err
			}
		case errors.Is(err, errDead):
			if !replace && time.Now().After(end) {
				replace, end = true, time.Now().Add(takeWait)
			}
		case errors.Is(err, ErrTaken):
			if v.listened(base) || time.Now().After(end) {
				return nil, err
			}
		case !errors.Is(err, errAgain) || time.Now().After(end):
			return nil, err
		}
		time.Sleep(takeTick)
	}
}

// makeDirs makes the directories that are not there and checks all of them.
func (v *view) makeDirs(base string) error {
	dir := v.dir(base)
	for _, path := range []string{filepath.Dir(dir), dir} {
		err := os.Mkdir(path, 0o755)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		st, serr := os.Lstat(path)
		if serr != nil {
			return gone(serr)
		}
		if path != dir {
			if st, err = tighten(path, st, v.uid); err != nil {
				return gone(err)
			}
		}
		if err := isType(path, st, fs.ModeDir); err != nil {
			return err
		}
		// A directory to which this user may not write is checked below if there is
		// something in it. If it is empty, it does no harm.
		if unix.Access(path, unix.W_OK) != nil {
			continue
		}
		if err := trusted(path, st, v.uid, 0); err != nil {
			return err
		}
		// The mode must not depend on the umask of the process.
		if owner(st) == v.uid && st.Mode().Perm()&0o755 != 0o755 {
			if err := os.Chmod(path, st.Mode().Perm()|0o755); err != nil {
				return gone(err)
			}
		}
	}
	if _, err := v.check(base); err != nil {
		return gone(err)
	}
	return nil
}

// gone adds errAgain to an error that means that Sweep has removed the file meanwhile.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	return err
}

// takeLock takes the lock. The error is ErrTaken if another stack has it. The mode of the
// file keeps other users out, because a user who can open a file can lock it.
//
// If only dead processes have the lock, the error is errDead. With replace, the file is removed
// then, dead gets the processes, and the error is errAgain.
func (v *view) takeLock(base string, dead *[]holder, replace bool) (_ *os.File, err error) {
	name := filepath.Join(v.dir(base), lockName)
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, gone(err)
	}
	defer func() {
		if err != nil {
			_ = f.Close()
		}
	}()
	done, err := turn(f, name)
	if err != nil {
		return nil, err
	}
	defer done()
	if err := lockFile(f, name); errors.Is(err, ErrTaken) {
		all, gone := holdersDead(f)
		switch {
		case !gone:
			return nil, err
		case !replace:
			return nil, errDead
		}
		*dead = append(*dead, all...)
		return nil, errors.Join(errAgain, os.Remove(name))
	} else if err != nil {
		return nil, err
	}
	if err := f.Chmod(0o600); err != nil {
		return nil, err
	}
	return f, writeHolders(f, strconv.AppendUint(nil, v.ino, 10), known())
}

// lockFile locks f, which was opened as name. The error is ErrTaken if another process has
// the lock, and errAgain if the file does not have this name any more.
func lockFile(f *os.File, name string) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return ErrTaken
	case err != nil:
		return fmt.Errorf("lock %s: %w", name, err)
	}
	if !named(f, name) {
		return errAgain
	}
	return nil
}

// named reports whether f has this name.
func named(f *os.File, name string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(name)
	return err == nil && mine.Mode().IsRegular() && os.SameFile(mine, there)
}

// removeSockets removes the sockets that a killed stack has left. The caller must have the
// lock.
func removeSockets(dir string) error {
	var err error
	for _, name := range sockets {
		for _, name := range []string{name, fresh + name} {
			if rerr := os.Remove(filepath.Join(dir, name)); !errors.Is(rerr, fs.ErrNotExist) {
				err = errors.Join(err, rerr)
			}
		}
	}
	return errors.Join(err, removeParts(dir))
}

// Listen opens the socket name. All users may connect to it, but only root and this user if
// name is Takeover. Close of the Claim closes the listener and removes the socket.
// The error is net.ErrClosed after Close.
//
// After Inherit, nobody finds the socket before Publish.
func (c *Claim) Listen(name string) (*net.UnixListener, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, net.ErrClosed
	}
	// Clients may connect as soon as they find the socket, so it gets its name when it is
	// ready.
	early := filepath.Join(c.dir, fresh+name)
	if len(early) > maxPath {
		return nil, fmt.Errorf("%s is too long for the path of a socket: set XDG_RUNTIME_DIR to a shorter one", early)
	}
	if c.hidden {
		// A process that was killed before Publish has left its socket.
		_ = os.Remove(early)
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: early, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the socket has another name by then
	mode := os.FileMode(0o666)
	if private(name) {
		mode = 0o600
	}
	if err = os.Chmod(early, mode); err == nil && !c.hidden {
		err = c.publish(name)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(early))
	}
	c.listeners[name] = l
	return l, nil
}

// Dead returns the processes of the stack that had the place before this one, was killed, and
// has not ended yet because a thread is in a system call that no signal ends. What they have besides
// the place, such as UDP ports, they still have.
func (c *Claim) Dead() (pids []int) {
	for _, h := range c.dead {
		if h.remains() {
			pids = append(pids, int(h.pid))
		}
	}
	return pids
}

// Dir returns the directory of the sockets.
func (c *Claim) Dir() string { return c.dir }

// Close removes the sockets and releases the place, so that another stack may take it. A
// second call does nothing.
func (c *Claim) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	err := c.closePart()
	c.unguard()
	// If the directory was removed meanwhile, the sockets there belong to another stack.
	switch {
	case c.left:
	case c.hidden:
		_ = c.hold(false, false) // this process may live on
		err = errors.Join(err, c.removeHidden())
	case named(c.lock, filepath.Join(c.dir, lockName)):
		err = errors.Join(err, removeSockets(c.dir))
	}
	for _, l := range c.listeners {
		if lerr := l.Close(); !errors.Is(lerr, net.ErrClosed) {
			err = errors.Join(err, lerr)
		}
	}
	if lerr := c.lock.Close(); !errors.Is(lerr, os.ErrClosed) {
		err = errors.Join(err, lerr)
	}
	return err
}
