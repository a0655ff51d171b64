// SPDX-License-Identifier: Apache-2.0

package place

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// current returns the view of this process from the calling thread.
func current() (*view, error) {
	cookie, err := Cookie()
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		st.Ino = 0 // not known; only Sweep uses it
	}
	uid := thisUser()
	return &view{root: rootBase, own: ownBase(os.Getenv("XDG_RUNTIME_DIR"), uid), uid: uid, cookie: cookie, ino: st.Ino}, nil
}

// Dir returns root's directory for the network namespace.
func Dir() (string, error) {
	v, err := current()
	if err != nil {
		return "", err
	}
	return v.dir(v.root), nil
}

// Dial connects to a socket of the stack. The error matches [ErrAbsent] if there
// is none, and is an [UntrustedError] if something else is there.
func Dial(ctx context.Context, name string) (*net.UnixConn, error) {
	v, err := current()
	if errors.Is(err, unix.ENOPROTOOPT) {
		return nil, fmt.Errorf("%w: %w", ErrAbsent, unix.ENOENT) // this kernel is too old for a stack
	}
	if err != nil {
		return nil, err
	}
	return v.dial(ctx, name)
}

func (v *view) dial(ctx context.Context, name string) (*net.UnixConn, error) {
	var none error
	for _, base := range v.bases() {
		c, err := v.dialAt(ctx, base, name)
		if err == nil || !absent(err) && !v.closed(base) {
			return c, err
		}
		none = err
	}
	return nil, fmt.Errorf("%w: %w", ErrAbsent, none)
}

// closed reports whether this user may not enter the user's own runtime directory, as in a unit of
// systemd with ProtectHome=yes. A stack of this user cannot be there then.
func (v *view) closed(base string) bool {
	if base != v.own || base == v.root {
		return false
	}
	_, err := os.Stat(base)
	if err == nil {
		err = unix.Access(base, unix.X_OK)
	}
	return errors.Is(err, unix.EACCES)
}

// absent reports whether err means that no stack listens. A killed stack leaves a socket
// that refuses connections.
func absent(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED)
}

func (v *view) dialAt(ctx context.Context, base, name string) (*net.UnixConn, error) {
	stack, err := v.check(base, name)
	if err != nil {
		return nil, err
	}
	// After the check, only root, this user and the user of the stack can have replaced
	// the socket.
	path := filepath.Join(v.dir(base), name)
	var d net.Dialer
	c, err := d.DialContext(ctx, "unixpacket", path)
	if err != nil {
		return nil, err
	}
	uc := c.(*net.UnixConn)
	if err := v.checkPeer(uc, path, stack); err != nil {
		_ = uc.Close()
		return nil, err
	}
	return uc, nil
}

// checkPeer checks which user is at the other end of a connection (unix(7), SO_PEERCRED):
// root, this user, or stack, which is 0 or the user to whom root has given the place.
func (v *view) checkPeer(c *net.UnixConn, path string, stack uint32) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if cerr != nil {
		return fmt.Errorf("who listens at %s: %w", path, os.NewSyscallError("getsockopt", cerr))
	}
	if cred.Uid != 0 && cred.Uid != v.uid && cred.Uid != stack {
		return &UntrustedError{Path: path, Owner: cred.Uid, Why: fmt.Sprintf("is a socket at which process %d of user %d listens, "+
			"not root or user %d, and is not trusted: end that process", cred.Pid, cred.Uid, v.uid)}
	}
	return nil
}

// listened reports whether anybody listens for commands, as the stack does that
// has the place. Who that is does not matter: the place is not free.
func (v *view) listened(base string) bool {
	d := net.Dialer{Timeout: time.Second}
	c, err := d.Dial("unixpacket", filepath.Join(v.dir(base), Commands))
	if err == nil {
		_ = c.Close()
	}
	// A full queue is that of a living process.
	return err == nil || errors.Is(err, unix.EAGAIN)
}
