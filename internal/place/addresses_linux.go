// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// addressesName is a file with the addresses of a network namespace, for the stacks of
	// the other namespaces of the machine.
	addressesName = "addresses"
	// MaxAddresses is the largest size of such a file, in bytes.
	MaxAddresses = 64 << 10
	// MaxOthers is the largest number of other network namespaces that Others returns.
	MaxOthers = 4096
)

// ErrUnchanged means that a file has not been written again.
var ErrUnchanged = errors.New("the file is the same as before")

// WriteAddresses replaces the file with the addresses of this network namespace. Everybody
// may read it, and only root and the user of the stack can write it. Close of the Claim
// removes it. The error is net.ErrClosed after Close, and after Leave.
func (c *Claim) WriteAddresses(b []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.left {
		return net.ErrClosed
	}
	early, name := filepath.Join(c.dir, fresh+addressesName), filepath.Join(c.dir, addressesName)
	if err := os.Remove(early); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(early, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	// The mode must not depend on the umask of the process.
	err = errors.Join(err, f.Chmod(0o644), f.Close())
	if err == nil {
		err = os.Rename(early, name)
	}
	if err != nil {
		_ = os.Remove(early)
	}
	return err
}

// Others returns the cookies of the other network namespaces whose stacks have directories
// beside that of this one, or that of root, MaxOthers at most.
func (c *Claim) Others() (cookies []uint64) {
	seen := map[uint64]bool{c.view.cookie: true}
	for _, base := range c.view.bases() {
		top, err := os.Open(filepath.Dir(c.view.dir(base)))
		if err != nil {
			continue
		}
		names, _ := top.Readdirnames(MaxOthers)
		_ = top.Close()
		for _, name := range names {
			cookie, err := strconv.ParseUint(name, 10, 64)
			if err == nil && !seen[cookie] && len(cookies) < MaxOthers {
				seen[cookie] = true
				cookies = append(cookies, cookie)
			}
		}
	}
	return cookies
}

// ReadAddresses returns what the stack of another network namespace has written with
// WriteAddresses, and when. It trusts the same users as [Dial]. The error matches ErrUnchanged
// if that was at the time before, and [fs.ErrNotExist] if no stack has the place.
func (c *Claim) ReadAddresses(cookie uint64, before time.Time) (b []byte, written time.Time, err error) {
	v := c.view
	v.cookie = cookie
	err = fs.ErrNotExist
	for _, base := range v.bases() {
		if b, written, err = v.readAddresses(base, before); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return b, written, err
}

func (v *view) readAddresses(base string, before time.Time) (b []byte, written time.Time, err error) {
	stack, err := v.check(base)
	if err != nil {
		return nil, written, err
	}
	path := filepath.Join(v.dir(base), addressesName)
	// Not a FIFO or a link, at which an open or a read could wait.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, written, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, written, err
	}
	if err := isType(path, st, 0); err != nil {
		return nil, written, err
	}
	if err := trusted(path, st, v.uid, stack); err != nil {
		return nil, written, err
	}
	if v.abandoned(base) {
		return nil, written, fs.ErrNotExist
	}
	written = st.ModTime()
	if written.Equal(before) {
		return nil, written, ErrUnchanged
	}
	b, err = io.ReadAll(io.LimitReader(f, MaxAddresses+1))
	if err == nil && len(b) > MaxAddresses {
		err = unix.EFBIG
	}
	return b, written, err
}

// abandoned reports whether no process has the lock, or only dead ones: a killed stack has left the
// directory. If this user may not open the lock, or the processes are those of a PID namespace that
// this one does not see, the answer is no.
func (v *view) abandoned(base string) bool {
	f, err := os.OpenFile(filepath.Join(v.dir(base), lockName), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist)
	}
	defer f.Close()
	// A stack that wants the lock meanwhile tries again.
	if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
		return true
	}
	_, dead := holdersDead(f)
	return dead
}
