// SPDX-License-Identifier: Apache-2.0

package containers

import "strings"

// What runtimes call containers, pods and their cgroups. There are no regular expressions here: to compile such large ones would
// be a third of what each start of the program allocates.

const (
	digits  = "0123456789"
	lower   = "abcdefghijklmnopqrstuvwxyz"
	upper   = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	idLen   = 64  // hexadecimal digits of the ID of a container
	uidLen  = 64  // the most that the UID of a pod has
	nameLen = 253 // the most that the name of a container has
)

// isName reports whether text can be the name of a container, or its ID. None can be taken for an option or a path.
func isName(text string) bool {
	return text != "" && len(text) <= nameLen && only(text[:1], digits+lower+upper) && only(text, digits+lower+upper+"_.-")
}

// isID reports whether text is the ID of a container.
func isID(text string) bool { return len(text) == idLen && only(text, digits+"abcdef") }

// isUID reports whether text can be the UID of a pod: that of the API server, or the checksum of a static pod's file.
func isUID(text string) bool {
	return text != "" && len(text) <= uidLen && only(text[:1], digits+lower+upper) && only(text, digits+lower+upper+"-")
}

// ofGroup takes the name of the cgroup of a container apart: its ID, with the name of its runtime in front, and a suffix if systemd makes
// it.
func ofGroup(word string) (runtime, id string, ok bool) {
	word = strings.TrimSuffix(word, ".scope")
	at := max(len(word)-idLen, 0)
	runtime, id = word[:at], word[at:]
	if !isID(id) {
		return "", "", false
	}
	if runtime == "" {
		return "", id, true
	}
	runtime, sep := runtime[:at-1], runtime[at-1]
	if sep != '-' && sep != ':' || runtime == "" || !only(runtime[:1], lower) {
		return "", "", false
	}
	for part := range strings.SplitSeq(runtime, "-") {
		if part == "" || !only(part, digits+lower) {
			return "", "", false
		}
	}
	return runtime, id, true
}

// only reports whether all characters of text are in set.
func only(text, set string) bool {
	return strings.IndexFunc(text, func(r rune) bool { return !strings.ContainsRune(set, r) }) < 0
}
