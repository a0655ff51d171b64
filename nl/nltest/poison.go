// SPDX-License-Identifier: Apache-2.0

package nltest

import "reflect"

// Poison adds text to each string of v, of what it points to, and of its exported fields and
// elements. v is a pointer or a slice. Tests use it to have hostile names everywhere.
func Poison(v any, text string) { poison(reflect.ValueOf(v), text) }

func poison(v reflect.Value, text string) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			poison(v.Elem(), text)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				poison(v.Field(i), text)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			poison(v.Index(i), text)
		}
	case reflect.String:
		v.SetString(v.String() + text)
	}
}
