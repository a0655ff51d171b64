// SPDX-License-Identifier: Apache-2.0

package decode

// recent is a map that keeps the newest entries.
type recent[K comparable, V any] struct {
	limit int
	m     map[K]V
	order []K // of insertion; also keys that were removed since
}

func newRecent[K comparable, V any](limit int) *recent[K, V] {
	return &recent[K, V]{limit: limit, m: make(map[K]V)}
}

func (r *recent[K, V]) get(k K) (V, bool) {
	v, ok := r.m[k]
	return v, ok
}

// put sets an entry. If it is a new one and the map is full, the oldest ones make room.
func (r *recent[K, V]) put(k K, v V) {
	if _, ok := r.m[k]; !ok {
		for len(r.order) >= r.limit {
			delete(r.m, r.order[0])
			r.order = r.order[1:]
		}
		r.order = append(r.order, k)
	}
	r.m[k] = v
}
