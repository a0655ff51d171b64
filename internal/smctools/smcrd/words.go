// SPDX-License-Identifier: Apache-2.0

package smcrd

import (
	"strings"

	"smcr/internal/smctools/tool"
	"smcr/nl"
)

// A selection is what the words after device or linkgroup select. If there are several,
// the network device counts first, then the RoCE device, then the link group.
type selection struct {
	links  bool // link-show
	netdev string
	ibdev  string

	// The link group: as typed, and without the byte for the number of a link.
	typed, group nl.LinkGroupID
}

// noGroup is the number for words without a hexadecimal digit.
const noGroup = 0xffffffff

// linkByte is the part of a link group's ID that is different for each of its links. A
// link ID also selects the group.
const linkByte = 0xff

// words reads the words after device or, with groups, linkgroup. It returns false if
// they are invalid.
func (t *commandLine) words(args []string, groups bool) (selection, bool) {
	var s selection
	if len(args) > 4 || len(args) == 1 && tool.IsPrefix(args[0], "help") {
		return s, false
	}
	if len(args) > 0 {
		switch {
		case tool.IsPrefix(args[0], "show"):
			args = args[1:]
		case groups && tool.IsPrefix(args[0], "link-show"):
			s.links, args = true, args[1:]
		}
	}
	all := false
	var value *string // where to store the next word, or nil
	for len(args) > 0 {
		word := args[0]
		args = args[1:]
		switch {
		case value != nil:
			*value = word
			return s, len(args) == 0
		case tool.IsPrefix(word, "help"):
			return s, false
		case tool.IsPrefix(word, "all"):
			all = true
		case !t.smcd && tool.IsPrefix(word, "ibdev"):
			value = &s.ibdev
		case !t.smcd && tool.IsPrefix(word, "netdev"):
			value = &s.netdev
		case groups && !all:
			s.typed = hexadecimal(word)
			if s.typed != noGroup {
				s.group = s.typed &^ linkByte
			}
			return s, len(args) == 0
		default:
			return s, false
		}
	}
	return s, true
}

// hexadecimal reads the hexadecimal digits at the beginning of a word, like strtol of
// the C library, or returns noGroup.
func hexadecimal(word string) nl.LinkGroupID {
	word = strings.TrimLeft(word, " \t\n\v\f\r")
	negative := strings.HasPrefix(word, "-")
	if negative || strings.HasPrefix(word, "+") {
		word = word[1:]
	}
	if len(word) > 2 && (word[:2] == "0x" || word[:2] == "0X") && digit(word[2]) >= 0 {
		word = word[2:]
	}
	if word == "" || digit(word[0]) < 0 {
		return noGroup
	}
	v := uint64(0)
	for i := 0; i < len(word) && digit(word[i]) >= 0; i++ {
		if v > 1<<59 {
			return noGroup // saturated
		}
		v = v<<4 | uint64(digit(word[i]))
	}
	if negative {
		v = -v
	}
	return nl.LinkGroupID(uint32(v))
}

// digit returns the value of a hexadecimal digit, or -1.
func digit(c byte) int {
	if c >= 'A' && c <= 'F' {
		c += 'a' - 'A'
	}
	return strings.IndexByte("0123456789abcdef", c)
}

// Knows reports whether smc-tools knows the words after an object. Otherwise it refuses
// them, or takes them for a name and finds nothing. Words after those that it knows do
// not matter.
func Knows(object string, words []string) bool {
	if len(words) == 0 {
		return true
	}
	word := words[0]
	any := func(names ...string) bool { return command(word, names...) != "" }
	switch object {
	case "info":
		return any("show", "help")
	case "stats":
		return any("help", "show", "reset", "json")
	case "ueid":
		return any("help", "add", "del", "flush", "show")
	case "seid":
		return any("help", "enable", "disable", "show")
	case "help":
		return true
	}
	groups := object == "linkgroup"
	if any("show") || groups && any("link-show") {
		if len(words) == 1 {
			return true
		}
		word = words[1]
	}
	return any("help", "all", "ibdev", "netdev") || groups && IsID(word)
}

// IsID reports whether a word is the ID of a link group: only hexadecimal digits. The
// command add, which consists of such digits, is not an ID.
func IsID(word string) bool {
	digits := strings.TrimPrefix(strings.TrimPrefix(word, "0x"), "0X")
	return digits != "" && len(digits) <= 8 && word != "add" &&
		strings.IndexFunc(digits, func(r rune) bool { return r > 0x7f || digit(byte(r)) < 0 }) < 0
}
