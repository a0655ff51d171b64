// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	passwd      = "/etc/passwd"
	usersAge    = time.Minute // after which the file is read again
	maxUsersLen = 4 << 20     // bytes of the file that are read
)

// users knows the names of the users of a file in the form of /etc/passwd. It asks no other
// service, such as LDAP: an answer of the page must not wait for one.
type users struct {
	file string

	mu    sync.Mutex
	read  time.Time
	names map[uint32]string
}

// name returns the name of a user, or "" if the file does not have it.
func (u *users) name(uid uint32) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	if now := time.Now(); u.read.IsZero() || now.Sub(u.read) > usersAge {
		u.read, u.names = now, readUsers(u.file)
	}
	return u.names[uid]
}

// readUsers reads a file of users. A file that cannot be read has no names.
func readUsers(file string) map[uint32]string {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxUsersLen))
	if err != nil {
		return nil
	}
	names := make(map[uint32]string)
	for line := range strings.Lines(string(b)) {
		fields := strings.Split(line, ":")
		if len(fields) < 4 || fields[0] == "" {
			continue
		}
		uid, err := strconv.ParseUint(fields[2], 10, 32)
		if err != nil {
			continue
		}
		if _, known := names[uint32(uid)]; !known { // as getpwuid, the first one
			names[uint32(uid)] = fields[0]
		}
	}
	return names
}

// userCell returns a user with the name, if there is one.
func userCell(uid uint32, name func(uint32) string) string {
	if n := name(uid); n != "" {
		return fmt.Sprintf("%s (%d)", n, uid)
	}
	return fmt.Sprint(uid)
}
