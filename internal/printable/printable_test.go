// SPDX-License-Identifier: Apache-2.0

package printable

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// special are characters that do something to a terminal, to the order of a line, or to the
// lines of a listing.
var special = map[string]string{
	"escape sequence":    "\x1b]0;title\a",
	"C0":                 "\x00\x08\r",
	"DEL":                "\x7f",
	"C1 (CSI)":           "\u009b31m",
	"next line":          "\u0085",
	"line end":           "\n",
	"tab":                "\t",
	"override":           "\u202e\u202d",
	"embedding":          "\u202a\u202b\u202c",
	"isolate":            "\u2066\u2067\u2068\u2069",
	"marks":              "\u200e\u200f\u061c",
	"no width":           "\u200b\u200d\ufeff",
	"line separator":     "\u2028\u2029",
	"not UTF-8":          "\xff\x9b",
	"replacement":        "\ufffd",
	"tag, beyond 16 bit": "\U000e0041",
	"surrogate":          "\xed\xa0\x80",
}

// harmless reports whether a text has only printable characters and those in keep.
func harmless(s, keep string) bool {
	return utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool {
		return !unicode.IsPrint(r) && !strings.ContainsRune(keep, r)
	}) < 0
}

func TestLine(t *testing.T) {
	for name, s := range special {
		got := Line("a" + s + "b")
		if !harmless(got, "") || !strings.HasPrefix(got, "a?") || !strings.HasSuffix(got, "b") {
			t.Errorf("%s: %q", name, got)
		}
		if got, want := utf8.RuneCountInString(got), utf8.RuneCountInString("a"+s+"b"); got != want {
			t.Errorf("%s: %d characters, want %d", name, got, want)
		}
	}
	for _, s := range []string{"", "eth0", "a b~", "Zürich", "日本語", "µs → ok"} {
		if Line(s) != s {
			t.Errorf("%q becomes %q", s, Line(s))
		}
	}
}

func TestJSON(t *testing.T) {
	for name, s := range special {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "\t")
		in := []string{"a" + s + "b", "é"}
		if err := enc.Encode(in); err != nil {
			t.Fatal(err)
		}
		got := JSON(bytes.Clone(b.Bytes()))
		if !harmless(string(got), "\n\t\ufffd") {
			t.Errorf("%s: %q", name, got)
		}
		var before, after []string
		if err := errors.Join(json.Unmarshal(b.Bytes(), &before), json.Unmarshal(got, &after)); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if before[0] != after[0] || after[1] != in[1] {
			t.Errorf("%s: %q becomes %q", name, before, after)
		}
	}
}

type name string

type level uint8

func (l level) String() string { return "level\x1b" }

func TestFprintf(t *testing.T) {
	for _, tt := range []struct {
		format string
		args   []any
		want   string
	}{
		{"%s|%-6s|%6s|%.2s\n", []any{"a\nb", "a\nb", "\x1b", "\x1b\x1b\x1b"}, "a?b|a?b   |     ?|??\n"},
		{"%-*s|%v %d %x\n", []any{4, "\r", name("\u202e"), 7, "\x1b"}, "?   |? 7 1b\n"},
		{"%v %s", []any{errors.New("x\ny"), errors.New("plain")}, "x?y plain"},
		{"%v|%s", []any{errors.Join(errors.New("connection reset by peer"), errors.New("the peer\nhas gone")), fmt.Errorf("a: %w: b", errors.Join(errors.New("c"), errors.New("d")))},
			"connection reset by peer; the peer?has gone|a: c; d: b"},
		{"%d %v %02x", []any{level(7), level(7), level(7)}, "7 level? 6c6576656c1b"},
		{"%v %v", []any{[]string{"\x1b"}, struct{ A string }{"\x1b"}}, "[?] {?}"},
		{"%q %t %v", []any{"\x1b", true, netip.MustParseAddr("::1")}, `"\x1b" true ::1`},
		{"\x1b[1m%s\n", []any{"b"}, "\x1b[1mb\n"}, // the format is the program's own
		{"%v", []any{nil}, "<nil>"},
	} {
		var b strings.Builder
		if _, err := Fprintf(&b, tt.format, tt.args...); err != nil || b.String() != tt.want {
			t.Errorf("%q: %q, %v, want %q", tt.format, b.String(), err, tt.want)
		}
		if got := Sprintf(tt.format, tt.args...); got != tt.want {
			t.Errorf("%q: Sprintf %q, want %q", tt.format, got, tt.want)
		}
	}
	args := []any{"plain", 1}
	if got := Args(args); &got[0] != &args[0] {
		t.Error("plain arguments were copied")
	}
	hostile := []any{"\x1b"}
	if Args(hostile); hostile[0] != "\x1b" {
		t.Error("the arguments of the caller have changed")
	}
}

// BenchmarkLine measures a text that needs no change.
func BenchmarkLine(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if Line("host-name.example.com") == "" {
			b.Fatal()
		}
	}
}
