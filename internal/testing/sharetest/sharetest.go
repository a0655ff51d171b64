// SPDX-License-Identifier: Apache-2.0

package sharetest

import "testing"

// First is the number of the first user. The next ones follow.
const First = 1000

// Users has users take places of a table, each as many as it can, one user after another. take
// takes a place and reports whether there was one. At least the first most users must get something
// although all before them have taken what they could. It returns how many places each user has.
func Users(t testing.TB, most int, take func(uid uint32) bool) (got []int) {
	t.Helper()
	const limit = 1 << 20
	for i := range most {
		n := 0
		for n < limit && take(uint32(First+i)) {
			n++
		}
		switch n {
		case 0:
			t.Fatalf("%d users have taken all, %v: the next one gets nothing", i, got)
		case limit:
			t.Fatalf("no bound for user %d", First+i)
		}
		got = append(got, n)
	}
	return got
}
