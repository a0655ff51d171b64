// SPDX-License-Identifier: Apache-2.0

package retry

import (
	"errors"
	"slices"
	"testing"
)

func TestWhole(t *testing.T) {
	changed, other := errors.New("changed"), errors.New("another error")
	for _, test := range []struct {
		name  string
		reads []error // the last one, again and again
		calls int
		err   error
	}{
		{"nothing changes", []error{nil}, 1, nil},
		{"it changes twice", []error{changed, changed, nil}, 3, nil},
		{"another error", []error{other}, 1, other},
		{"another error at the second try", []error{changed, other}, 2, other},
		{"it changes each time", []error{changed}, wholeTries, changed},
	} {
		calls := 0
		list, err := Whole(changed, func() ([]int, error) {
			e := test.reads[min(calls, len(test.reads)-1)]
			calls++
			return []int{calls}, e
		})
		if calls != test.calls || !errors.Is(err, test.err) || !slices.Equal(list, []int{calls}) {
			t.Errorf("%s: %d calls, %v, %v", test.name, calls, list, err)
		}
	}
}
