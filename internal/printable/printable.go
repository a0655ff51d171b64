// SPDX-License-Identifier: Apache-2.0

package printable

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Line returns s with a question mark in place of each character that is not printable
// ([unicode.IsPrint]): control characters (C0, DEL, C1), line ends, characters that change
// the direction of text or have no width, and bytes that are not UTF-8. The number of
// characters stays the same.
func Line(s string) string {
	if isPlain(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		if r != utf8.RuneError && unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, s)
}

// isPlain reports whether s has only printable ASCII characters, as most texts do.
func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

// JSON returns the JSON text b with each character that is not printable as an escape
// sequence (\u009b). Line ends and tabs between the values stay. The decoded values are the
// same. It may change b.
func JSON(b []byte) []byte {
	special := func(r rune) bool {
		return r >= 0x7f && !unicode.IsPrint(r) // lower ones are escaped in any JSON text
	}
	if bytes.IndexFunc(b, special) < 0 {
		return b
	}
	out := make([]byte, 0, len(b)+64)
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		switch {
		case !special(r):
			out = append(out, b[:n]...)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		b = b[n:]
	}
	return out
}

// Fprintf formats like [fmt.Fprintf], with each argument that is a text, an error or a
// [fmt.Stringer] as by [Line]. It does not change the format itself.
func Fprintf(w io.Writer, format string, args ...any) (int, error) {
	if false {
		_ = fmt.Sprintf(format, args...) // so that go vet checks the format of callers
	}
	return fmt.Fprintf(w, format, Args(args)...)
}

// Sprintf is like [Fprintf] and returns the text.
func Sprintf(format string, args ...any) string {
	if false {
		_ = fmt.Sprintf(format, args...)
	}
	return fmt.Sprintf(format, Args(args)...)
}

// Args returns arguments for a function of package fmt that print as by [Line]. It returns
// args itself if they print like that anyway.
func Args(args []any) []any {
	changed := false
	for i, a := range args {
		if prints(a) {
			continue
		}
		if !changed {
			args, changed = append([]any(nil), args...), true
		}
		args[i] = argument{a}
	}
	return args
}

// prints reports whether an argument is known to print without special characters.
func prints(a any) bool {
	switch a := a.(type) {
	case nil, bool, int, int32, int64, uint8, uint16, uint32, uint64, float64:
		return true
	case string:
		return isPlain(a)
	case error:
		return isPlain(a.Error())
	case fmt.Stringer:
		return isPlain(a.String())
	}
	v := reflect.ValueOf(a)
	if v.Kind() == reflect.String {
		return isPlain(v.String())
	}
	return v.CanInt() || v.CanUint() || v.CanFloat()
}

// An argument is formatted like its value, and then cleaned.
type argument struct{ value any }

// Format implements [fmt.Formatter].
func (a argument) Format(s fmt.State, verb rune) {
	if err, ok := a.value.(error); ok && (verb == 'v' || verb == 's') {
		if all := Lines(err); len(all) > 1 { // joined errors are no name with a line end
			_, _ = io.WriteString(s, Line(strings.Join(all, "; ")))
			return
		}
	}
	_, _ = io.WriteString(s, Line(fmt.Sprintf(fmt.FormatString(s, verb), a.value)))
}
