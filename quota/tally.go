// SPDX-License-Identifier: Apache-2.0

package quota

// A Tally counts what each of those has who share a table, and what all have together. The zero value is ready for use. A Tally takes no
// lock.
type Tally[K comparable] struct {
	has   map[K]int // only those that are not 0
	total int
}

// Of returns how many one has.
func (t *Tally[K]) Of(k K) int { return t.has[k] }

// Total returns how many all have together.
func (t *Tally[K]) Total() int { return t.total }

// Fair reports whether one may take one more of a table of most, of which each may have a share: see [Fair].
func (t *Tally[K]) Fair(k K, share, most int) bool { return Fair(t.has[k], 1, share, t.total, most) }

// Add counts one more, until Remove is called with the same key.
func (t *Tally[K]) Add(k K) {
	if t.has == nil {
		t.has = map[K]int{}
	}
	t.has[k]++
	t.total++
}

// Remove ends what Add has counted. It panics if that is nothing.
func (t *Tally[K]) Remove(k K) {
	if t.has[k] == 0 {
		panic("quota: Remove without Add")
	}
	t.total--
	if t.has[k]--; t.has[k] == 0 {
		delete(t.has, k)
	}
}

// Most returns one of those who have the most, the least of them by less, and how many that is. It looks at all.
func (t *Tally[K]) Most(less func(a, b K) bool) (k K, n int) {
	for x, has := range t.has {
		if has > n || has == n && less(x, k) {
			k, n = x, has
		}
	}
	return k, n
}
