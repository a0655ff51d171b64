// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"bufio"
	"cmp"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// The files with the subordinate user IDs (subuid(5)) and with the numbers of users (passwd(5)).
const (
	subIDs = "/etc/subuid"
	passwd = "/etc/passwd"
)

const (
	// maxSubIDs bounds what is read of a file, in bytes.
	maxSubIDs = 1 << 20
	// readEvery is how often at most it is looked whether the file has changed.
	readEvery = 10 * time.Second
	// maxOwn is how many users may have been asked for who are users of their own. With more, changes of the file have no effect.
	maxOwn = 1 << 14
)

// Account returns the user to whom is charged what user uid takes: the owner of uid if it is a
// subordinate user ID, and else uid. A user without rights can become each of the subordinate users,
// of which there usually are 65,536, so they must not have shares of their own.
//
// Those of root stay users of their own: programs in containers that root starts have them. What is taken and given back is always
// charged to the same user: of the users that the file gets while the process runs, those count who were not asked for before, and no
// owner is forgotten.
// Account is safe for concurrent use.
func Account(uid uint32) uint32 { return host.account(time.Now(), uid) }

// Subordinates returns the users that [Account] charges to another one, in order and without overlap. Later, there may be more.
func Subordinates() []IDs { return host.list(time.Now()) }

var host = subordinates{subIDs: subIDs, passwd: passwd}

// subordinates are the subordinate users of a host.
type subordinates struct {
	subIDs, passwd string

	mu   sync.Mutex
	all  []IDs           // in order and without overlap
	own  map[uint32]bool // users of their own who were asked for: they stay so
	next time.Time       // when it is to be looked at the file again
	was  os.FileInfo     // of the file that was read
}

func (s *subordinates) account(now time.Time, uid uint32) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh(now)
	if uid == 0 || s.own[uid] {
		return uid
	}
	owner := accountIn(s.all, uid)
	if owner == uid && len(s.own) < maxOwn {
		if s.own == nil {
			s.own = map[uint32]bool{}
		}
		s.own[uid] = true
	}
	return owner
}

func (s *subordinates) list(now time.Time) []IDs {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh(now)
	return slices.Clone(s.all)
}

// refresh reads the file if it has changed, and adds what is new in it. mu is held.
func (s *subordinates) refresh(now time.Time) {
	if now.Before(s.next) || s.was != nil && len(s.own) >= maxOwn {
		return
	}
	s.next = now.Add(readEvery)
	f, err := os.Open(s.subIDs)
	if err != nil {
		return
	}
	defer f.Close()
	is, err := f.Stat()
	if err != nil || s.was != nil && os.SameFile(is, s.was) && is.ModTime().Equal(s.was.ModTime()) && is.Size() == s.was.Size() {
		return
	}
	s.was = is
	users := readUsers(s.passwd)
	s.all = merge(s.all, readRanges(io.LimitReader(f, maxSubIDs), func(name string) (uint32, bool) {
		uid, ok := users[name]
		return uid, ok
	}))
}

// merge adds those of more that do not change whom a user of all is charged to. The account of an account must be itself.
func merge(all, more []IDs) []IDs {
	all = slices.Clone(all)
	for _, x := range more {
		if !slices.ContainsFunc(all, func(y IDs) bool {
			return x.First <= y.Last && y.First <= x.Last || y.has(x.Owner) || x.has(y.Owner)
		}) {
			all = append(all, x)
		}
	}
	slices.SortFunc(all, func(x, y IDs) int { return cmp.Compare(x.First, y.First) })
	return all
}

// readUsers returns the numbers of the users of passwd(5). Package os/user would read the file for
// each name.
func readUsers(file string) map[string]uint32 {
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	users := map[string]uint32{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		w := strings.Split(lines.Text(), ":")
		if len(w) < 3 {
			continue
		}
		if n, err := strconv.ParseUint(w[2], 10, 32); err == nil {
			users[w[0]] = uint32(n)
		}
	}
	return users
}

// IDs are the user IDs from First to Last, for whom Owner answers.
type IDs struct{ First, Last, Owner uint32 }

func (r IDs) has(uid uint32) bool { return r.First <= uid && uid <= r.Last }

// readRanges reads the lines OWNER:FIRST:COUNT. It leaves out those that are not valid, those of
// root, and those that overlap with one before. number returns the number of a user.
func readRanges(r io.Reader, number func(name string) (uint32, bool)) (all []IDs) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		f := strings.Split(strings.TrimSpace(lines.Text()), ":")
		if len(f) != 3 {
			continue
		}
		var owner uint32
		if n, err := strconv.ParseUint(f[0], 10, 32); err == nil {
			owner = uint32(n)
		} else if n, ok := number(f[0]); ok {
			owner = n
		}
		first, ferr := strconv.ParseUint(f[1], 10, 32)
		count, cerr := strconv.ParseUint(f[2], 10, 32)
		if owner == 0 || ferr != nil || cerr != nil || first == 0 || count == 0 || first+count > 1<<32-1 { // the last number is nobody's
			continue
		}
		x := IDs{uint32(first), uint32(first + count - 1), owner}
		if !slices.ContainsFunc(all, func(y IDs) bool { return x.First <= y.Last && y.First <= x.Last }) {
			all = append(all, x)
		}
	}
	// The account of an account must be itself.
	whole := slices.Clone(all)
	all = slices.DeleteFunc(all, func(x IDs) bool {
		return slices.ContainsFunc(whole, func(y IDs) bool { return y.has(x.Owner) })
	})
	slices.SortFunc(all, func(x, y IDs) int { return cmp.Compare(x.First, y.First) })
	return all
}

func accountIn(all []IDs, uid uint32) uint32 {
	i, found := slices.BinarySearchFunc(all, uid, func(r IDs, uid uint32) int {
		switch {
		case r.Last < uid:
			return -1
		case r.First > uid:
			return 1
		}
		return 0
	})
	if !found {
		return uid
	}
	return all[i].Owner
}
