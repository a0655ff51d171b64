// SPDX-License-Identifier: Apache-2.0

package place

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Others returns the cookies of the other network namespaces whose stacks have
// directories beside this one, and the time when a directory was last added or removed.
func (c *Claim) Others() (cookies []uint64, changed time.Time, err error) {
	top := filepath.Dir(c.dir)
	st, err := os.Stat(top)
	if err != nil {
		return nil, changed, err
	}
	entries, err := os.ReadDir(top)
	if err != nil {
		return nil, changed, err
	}
	for _, e := range entries {
		cookie, err := strconv.ParseUint(e.Name(), 10, 64)
		if err == nil && cookie != c.view.cookie && e.IsDir() {
			cookies = append(cookies, cookie)
		}
	}
	return cookies, st.ModTime(), nil
}

// Changed returns the time when a directory beside this one was last added or removed.
func (c *Claim) Changed() (time.Time, error) {
	st, err := os.Stat(filepath.Dir(c.dir))
	if err != nil {
		return time.Time{}, err
	}
	return st.ModTime(), nil
}

// DialOther connects to the stack of another network namespace, at the socket for stacks.
// It trusts the same users as [Dial]. The error matches [ErrAbsent] if there is no stack.
func (c *Claim) DialOther(ctx context.Context, cookie uint64) (*net.UnixConn, error) {
	v := c.view
	v.cookie = cookie
	u, err := v.dialAt(ctx, c.base, Stacks)
	if err != nil && (absent(err) || errors.Is(err, fs.ErrNotExist)) {
		return nil, errors.Join(ErrAbsent, err)
	}
	return u, err
}

// CheckPeer checks who is at the other end of a connection to the socket for stacks:
// root or this user.
func (c *Claim) CheckPeer(u *net.UnixConn) error {
	return c.view.checkPeer(u, filepath.Join(c.dir, Stacks), 0)
}
