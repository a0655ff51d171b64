// SPDX-License-Identifier: Apache-2.0

package cmdutil

import (
	"os/user"
	"strconv"
)

// UserName returns the name of a user, or the number of one without name.
func UserName(uid uint32) string {
	n := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(n); err == nil {
		return u.Username
	}
	return n
}
