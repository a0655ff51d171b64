// SPDX-License-Identifier: Apache-2.0

package stats

import (
	"reflect"
	"testing"
)

// fill sets each number below v to the next one.
func fill(v reflect.Value, next *uint64) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), next)
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), next)
		}
	case reflect.Uint64:
		*next++
		v.SetUint(*next)
	}
}

// TestAdd checks with distinct values that Add leaves out no counter: Sub is its inverse.
func TestAdd(t *testing.T) {
	var a, b Stats
	n := uint64(1000)
	fill(reflect.ValueOf(&a).Elem(), &n)
	fill(reflect.ValueOf(&b).Elem(), &n)
	if got := a.Add(b).Sub(b); !reflect.DeepEqual(got, a) {
		t.Errorf("%+v, want %+v", got, a)
	}
	if got := a.Add(b); got.SMCR.RXUsage != a.SMCR.RXUsage || got.Panics != a.Panics+b.Panics {
		t.Errorf("%+v", got)
	}
}

func TestAddFallbacks(t *testing.T) {
	a := Fallbacks{ClientTotal: 3, ServerTotal: 1, Reasons: []Fallback{{Reason: 1, Count: 3}, {Side: 1, Reason: 1, Count: 1}}}
	b := Fallbacks{ClientTotal: 2, ServerTotal: 4, Reasons: []Fallback{{Reason: 1, Count: 2}, {Side: 1, Reason: 7, Count: 4}}}
	want := Fallbacks{ClientTotal: 5, ServerTotal: 5, Reasons: []Fallback{{Reason: 1, Count: 5}, {Side: 1, Reason: 1, Count: 1}, {Side: 1, Reason: 7, Count: 4}}}
	if got := a.Add(b); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if a.Reasons[0].Count != 3 {
		t.Error("Add has changed its argument")
	}
	if got := a.Add(b).Sub(a); got.ClientTotal != 2 || got.ServerTotal != 4 || len(got.Reasons) != 2 {
		t.Errorf("%+v", got)
	}
}
