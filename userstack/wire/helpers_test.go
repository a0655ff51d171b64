// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// span is a half-open range of bytes.
type span struct{ from, to int }

// codec ties a message to its parser. Files in testdata begin with its name;
// llc2 are the LLC messages of version 2.
type codec struct {
	name  string
	parse func([]byte) (encoding.BinaryAppender, error)
	// reserved lists the bytes that no parser may look at.
	reserved []span
	// flags are the bits of the flags byte, at flagsAt, that mean something.
	flagsAt int
	flags   byte
}

func boxed[T encoding.BinaryAppender](f func([]byte) (T, error)) func([]byte) (encoding.BinaryAppender, error) {
	return func(b []byte) (encoding.BinaryAppender, error) {
		m, err := f(b)
		return m, err
	}
}

var codecs = []codec{
	{"clc_proposal", boxed(ParseProposal), nil, 7, 0xff},
	{"clc_accept", boxed(ParseAccept), []span{{51, 52}, {60, 61}}, 7, 0xf8},
	{"clc_confirm", boxed(ParseConfirm), []span{{51, 52}, {60, 61}}, 7, 0xf8},
	{"clc_decline", boxed(ParseDecline), []span{{21, 24}}, 7, 0xf8},
	{"llc_confirm_link", boxed(ParseConfirmLink), []span{{2, 3}, {35, 44}}, 3, 0x83},
	{"llc_add_link", boxed(ParseAddLink), []span{{10, 12}, {36, 44}}, 3, 0xc0},
	{"llc_add_link_cont", boxed(ParseAddLinkCont), []span{{2, 3}, {6, 8}, {40, 44}}, 3, 0x80},
	{"llc_delete_link", boxed(ParseDeleteLink), []span{{2, 3}, {9, 44}}, 3, 0xe0},
	{"llc_confirm_rkey", boxed(ParseConfirmRKey), []span{{2, 3}, {43, 44}}, 3, 0xb0},
	{"llc_confirm_rkey_cont", boxed(ParseConfirmRKeyCont), []span{{2, 3}}, 3, 0xa0},
	{"llc_delete_rkey", boxed(ParseDeleteRKey), []span{{2, 3}, {6, 8}, {40, 44}}, 3, 0xa0},
	{"llc_test_link", boxed(ParseTestLink), []span{{2, 3}, {20, 44}}, 3, 0x80},
	{"clc_accept_v2", boxed(ParseAcceptV2), []span{{51, 52}, {60, 61}, {96, 104}}, 7, 0xf8},
	{"clc_confirm_v2", boxed(ParseConfirmV2), []span{{51, 52}, {60, 61}, {96, 104}}, 7, 0xf8},
	{"llc2_confirm_link", boxed(ParseConfirmLink), []span{{36, 44}}, 3, 0x83},
	{"llc2_add_link", boxed(ParseAddLink), []span{{10, 12}, {36, 44}}, 3, 0xc0},
	{"llc2_req_add_link", boxed(ParseReqAddLink), []span{{4, 24}, {25, 28}}, 3, 0x80},
	{"llc2_delete_link", boxed(ParseDeleteLink), []span{{9, 44}}, 3, 0xe0},
	{"llc2_confirm_rkey", boxed(ParseConfirmRKey), []span{{43, 44}}, 3, 0xb0},
	{"llc2_delete_rkey", boxed(ParseDeleteRKeyV2), []span{{6, 8}}, 3, 0xa0},
	{"llc2_test_link", boxed(ParseTestLink), []span{{20, 44}}, 3, 0x80},
	{"cdc", boxed(ParseCDC), []span{{8, 10}, {16, 18}, {26, 44}}, 24, 0xf8},
}

func codecOf(t testing.TB, file string) codec {
	t.Helper()
	name, _, _ := strings.Cut(filepath.Base(file), ".")
	for _, c := range codecs {
		if c.name == name {
			return c
		}
	}
	t.Fatalf("%s: no codec of that name", file)
	return codec{}
}

// generic parses as a receiver that does not know what comes next.
func generic(b []byte) (encoding.BinaryAppender, error) {
	if len(b) > 0 && b[0] == byte(EyecatcherSMCR>>24) {
		return ParseCLC(b)
	}
	if IsCDC(b) {
		return ParseCDC(b)
	}
	return ParseLLC(b)
}

// readHex reads a file of hex digits with comments.
func readHex(t testing.TB, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var digits strings.Builder
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		digits.WriteString(line)
	}
	return mustHex(digits.String())
}

// mustHex decodes hex digits with space between them.
func mustHex(s string) []byte {
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		panic(err)
	}
	return b
}

// messageFiles lists the files of testdata that a parser has to take.
func messageFiles(t testing.TB) []string {
	t.Helper()
	var files []string
	for _, pattern := range []string{"clc_*", "llc_*", "llc2_*", "cdc.*"} {
		m, err := filepath.Glob("testdata/*/" + pattern + ".hex")
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, m...)
	}
	if len(files) < 100 {
		t.Fatalf("only %d messages in testdata", len(files))
	}
	return files
}

func diff(want, got any) string {
	return cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
}
