// SPDX-License-Identifier: Apache-2.0

package place

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Parts is how many processes can use a place at a time: the stack that has it, and
// stacks that have handed it over and still have connections.
const Parts = 16

const (
	partPrefix   = "part-"
	endingPrefix = "ending-"
)

// ErrParts means that a place is used by Parts processes already.
var ErrParts = fmt.Errorf("%d stacks that have handed over still have connections", Parts)

// Lock returns a descriptor of the file that is locked for the claim, to pass it to the
// process that takes over. The caller must close it.
func (c *Claim) Lock() (*os.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, net.ErrClosed
	}
	fd, err := unix.FcntlInt(c.lock.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("place: %w", err)
	}
	return os.NewFile(uintptr(fd), lockName), nil
}

// Inherit makes a claim of the descriptor that another process got from [Claim.Lock]. It
// owns the file. The sockets of the other process stay until Publish. The error matches
// ErrTaken if the file is not the lock of this network namespace's place.
func Inherit(lock *os.File) (*Claim, error) {
	v, err := current()
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return v.inherit(lock)
}

func (v *view) inherit(lock *os.File) (*Claim, error) {
	for _, base := range v.bases() {
		name := filepath.Join(v.dir(base), lockName)
		if !named(lock, name) {
			continue
		}
		_, err := v.check(base)
		if err == nil {
			err = lockFile(lock, name)
		}
		if err == nil {
			err = holdFile(lock, name, true, false)
		}
		if err != nil {
			return nil, errors.Join(err, lock.Close())
		}
		c := &Claim{dir: v.dir(base), lock: lock, view: *v, base: base, listeners: map[string]*net.UnixListener{}, hidden: true}
		_ = c.guard() // the other process has its own until Leave
		return c, nil
	}
	return nil, errors.Join(ErrTaken, lock.Close())
}

// Publish gives the sockets of an inherited claim their names. The sockets of the other
// process lose their names: from now on, clients find those of this one.
func (c *Claim) Publish() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.hidden = false
	// The other process does not have the place any more. While the file names it, this one
	// counts as living if that one does, so an error does little harm.
	_ = c.hold(true, true)
	var errs []error
	for name := range c.listeners {
		errs = append(errs, c.publish(name))
	}
	return errors.Join(errs...)
}

func (c *Claim) publish(name string) error {
	return os.Rename(filepath.Join(c.dir, fresh+name), filepath.Join(c.dir, name))
}

// removeHidden removes the sockets that did not get their names.
func (c *Claim) removeHidden() (err error) {
	for name := range c.listeners {
		if rerr := os.Remove(filepath.Join(c.dir, fresh+name)); !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// Part returns the number of the part of this process, 0 to Parts-1. No other process
// of the place has the same until Close, or until this process ends. The error matches
// ErrParts if there is none.
func (c *Claim) Part() (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.part != nil {
		return c.partN, nil
	}
	for n := range Parts {
		f, err := takePart(c.dir, n)
		if errors.Is(err, ErrTaken) {
			continue
		}
		if err != nil {
			return 0, err
		}
		// A process that was killed has left its files.
		if err := removeEnding(c.dir, n); err != nil {
			return 0, errors.Join(err, f.Close())
		}
		c.part, c.partN = f, n
		return n, nil
	}
	return 0, ErrParts
}

func partName(dir string, n int) string { return filepath.Join(dir, fmt.Sprint(partPrefix, n)) }

func endingName(n int) string { return fmt.Sprint(endingPrefix, n) }

// takePart locks the file of part n. The error is ErrTaken if another process has it.
func takePart(dir string, n int) (*os.File, error) {
	name := partName(dir, n)
	for {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if err != nil {
			return nil, err
		}
		err = lockPart(f, name)
		if err == nil {
			return f, nil
		}
		_ = f.Close()
		if !errors.Is(err, errAgain) {
			return nil, err
		}
	}
}

// lockPart is lockFile for the file of a part, which it takes from a dead process, too.
func lockPart(f *os.File, name string) error {
	done, err := inTurn(f, name)
	if err != nil {
		return err
	}
	defer done()
	if err := lockFile(f, name); errors.Is(err, ErrTaken) {
		if _, gone := holdersDead(f); gone {
			return errors.Join(errAgain, os.Remove(name))
		}
		return err
	} else if err != nil {
		return err
	}
	return writeHolders(f, nil, known())
}

// removeParts removes the files of processes that were killed.
func removeParts(dir string) (err error) {
	for n := range Parts {
		if _, serr := os.Lstat(partName(dir, n)); serr != nil {
			continue
		}
		f, terr := takePart(dir, n)
		if errors.Is(terr, ErrTaken) {
			continue
		}
		if terr == nil {
			terr = removePart(dir, n, f)
		}
		err = errors.Join(err, terr)
	}
	return err
}

// removePart removes the files of part n, whose lock f is, and closes f.
func removePart(dir string, n int, f *os.File) error {
	// If the directory was removed meanwhile, what is there now belongs to another stack.
	if !named(f, partName(dir, n)) {
		return f.Close()
	}
	return errors.Join(removeEnding(dir, n), os.Remove(partName(dir, n)), f.Close())
}

// removeEnding removes what a process of part n that had handed over has made.
func removeEnding(dir string, n int) (err error) {
	for _, name := range []string{endingName(n), drainName(n)} {
		if rerr := os.Remove(filepath.Join(dir, name)); !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// closePart gives back the part of this process. c.mu is held.
func (c *Claim) closePart() error {
	if c.part == nil {
		return nil
	}
	f := c.part
	c.part = nil
	return removePart(c.dir, c.partN, f)
}

// Leave ends the claim because another process has inherited it and published its
// sockets. Files stay, and so do the listeners: clients that found them a moment ago can
// still connect. Close releases the rest. Leave returns a socket at which commands find
// this process from now on, see [Ending]. until is when this process ends at the latest, or
// zero, for [Draining].
func (c *Claim) Leave(until time.Time) (*net.UnixListener, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.part == nil {
		return nil, net.ErrClosed
	}
	c.left = true
	c.unguard()
	name := endingName(c.partN)
	// The next process has named itself, unless it is of a release that does not know that.
	err := errors.Join(c.hold(false, false), c.lock.Close())
	err = errors.Join(err, writeDrain(c.dir, c.partN, until))
	path := filepath.Join(c.dir, name)
	l, lerr := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if lerr != nil {
		return nil, errors.Join(err, lerr)
	}
	l.SetUnlinkOnClose(false) // Close of the claim removes it
	return l, errors.Join(err, os.Chmod(path, 0o666))
}

// DialNext connects to the process that has the place after [Claim.Leave]. The error matches
// ErrAbsent if there is none.
func (c *Claim) DialNext(ctx context.Context) (*net.UnixConn, error) {
	u, err := c.view.dialAt(ctx, c.base, Takeover)
	if err != nil && absent(err) {
		return nil, errors.Join(ErrAbsent, err)
	}
	return u, err
}

// Ending returns the names of the sockets of stacks that have handed over the place of
// this network namespace, for [Dial]. Without a stack there are none.
func Ending() []string {
	v, err := current()
	if err != nil {
		return nil
	}
	return v.ending()
}

func (v *view) ending() (names []string) {
	for _, base := range v.bases() {
		if _, err := v.check(base); err != nil {
			continue
		}
		entries, err := os.ReadDir(v.dir(base))
		if err != nil {
			continue
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), endingPrefix) {
				names = append(names, e.Name())
			}
		}
		if len(names) > 0 {
			return names
		}
	}
	return nil
}

// CheckPeer checks who is at the other end of a connection to the socket Takeover: root or
// this user.
func (c *Claim) CheckPeer(u *net.UnixConn) error {
	return c.view.checkPeer(u, filepath.Join(c.dir, Takeover), 0)
}
