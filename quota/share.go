// SPDX-License-Identifier: Apache-2.0

package quota

// Fair reports whether a user who has own of the places of a table may take n more, where used of
// all most are taken. A user has at most share, and from the second place on no more than is then
// left for all others. So users who take all that they can leave a half, a quarter and so on to the
// next ones, and two of them, or four, never have everything.
func Fair[N int | int32 | int64](own, n, share, used, most N) bool {
	switch {
	case own+n > share || used+n > most:
		return false
	case own == 0:
		return true
	}
	return own+n <= most-used-n
}
