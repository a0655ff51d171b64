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
)

// subIDs is the file with the subordinate user IDs (subuid(5)).
const subIDs = "/etc/subuid"

// maxSubIDs bounds what is read of the file, in bytes.
const maxSubIDs = 1 << 20

// Account returns the user to whom is charged what user uid takes: the owner of uid if it is a
// subordinate user ID, and else uid. A user without rights can become each of the subordinate users,
// of which there usually are 65,536, so they must not have shares of their own.
//
// Those of root stay users of their own: programs in containers that root starts have them. The
// file /etc/subuid is read once, so what is taken and given back is always charged to the same user.
// Account is safe for concurrent use.
func Account(uid uint32) uint32 { return accountIn(ranges(), uid) }

// ranges are those of the file, in order and without overlap.
var ranges = sync.OnceValue(func() []IDs {
	f, err := os.Open(subIDs)
	if err != nil {
		return nil
	}
	defer f.Close()
	users := readUsers()
	return readRanges(io.LimitReader(f, maxSubIDs), func(name string) (uint32, bool) {
		uid, ok := users[name]
		return uid, ok
	})
})

// readUsers returns the numbers of the users of passwd(5). Package os/user would read the file for
// each name.
func readUsers() map[string]uint32 {
	f, err := os.Open("/etc/passwd")
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

// Subordinates returns the users that [Account] charges to another one, in order and without overlap.
func Subordinates() []IDs { return slices.Clone(ranges()) }

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
