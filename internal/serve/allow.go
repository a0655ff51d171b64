// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"slices"
	"strconv"

	"smcr/internal/cmdutil"
	"smcr/internal/place"
	"smcr/userstack/service"
)

// Allow is the list of users who may run programs over the stack: everyone, or these
// users and the members of these groups. Root and the owner of the stack always may.
type Allow struct {
	Users, Groups []uint32
}

// authorize returns a function that refuses programs of other users, or nil if
// everyone is allowed.
func (a Allow) authorize() func(service.Caller) error {
	if len(a.Users) == 0 && len(a.Groups) == 0 {
		return nil
	}
	owner := uint32(os.Geteuid())
	return func(c service.Caller) error {
		switch {
		case c.UID == 0, c.UID == owner, slices.Contains(a.Users, c.UID), slices.Contains(a.Groups, c.GID):
			return nil
		case slices.ContainsFunc(c.Groups, func(g uint32) bool { return slices.Contains(a.Groups, g) }):
			return nil
		}
		return fmt.Errorf("user %d may not use this stack: see --allow-user and --allow-group of 'smcr serve'", c.UID)
	}
}

// prepareFor gives the place of the stack of this network namespace to a user.
func prepareFor(name string, log *slog.Logger) error {
	uid, err := parseUser(name)
	if err != nil {
		return cmdutil.UsageError("--prepare %q: no such user", name)
	}
	gid := uid
	if u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10)); err == nil {
		n, err := strconv.ParseUint(u.Gid, 10, 32)
		if err != nil {
			return fmt.Errorf("the group of user %s: %w", name, err)
		}
		gid = uint32(n)
	}
	if err := place.Give(uid, gid); errors.Is(err, place.ErrTaken) {
		return fmt.Errorf("%w: it is not of user %s, so it cannot hand over: end it, and then start this one again", service.ErrRunning, name)
	} else if err != nil {
		return fmt.Errorf("cannot prepare the place for user %s: %w", name, err)
	}
	sweep(log)
	return nil
}

// parseUser returns the number of a user that is given by name or number.
func parseUser(s string) (uint32, error) {
	return parseID(s, func() (string, error) {
		u, err := user.Lookup(s)
		if err != nil {
			return "", err
		}
		return u.Uid, nil
	})
}

// parseGroup returns the number of a group that is given by name or number.
func parseGroup(s string) (uint32, error) {
	return parseID(s, func() (string, error) {
		g, err := user.LookupGroup(s)
		if err != nil {
			return "", err
		}
		return g.Gid, nil
	})
}

// parseID looks up a name, or parses it as a number. As in chown(1), a name that
// consists of digits takes precedence over the number.
func parseID(s string, lookup func() (string, error)) (uint32, error) {
	id, err := lookup()
	if err != nil {
		id = s
	}
	n, nerr := strconv.ParseUint(id, 10, 32)
	switch {
	case nerr == nil && n != 1<<32-1: // this number means no user
		return uint32(n), nil
	case err == nil:
		err = nerr
	}
	return 0, err
}
