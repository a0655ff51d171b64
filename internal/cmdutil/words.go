// SPDX-License-Identifier: Apache-2.0

package cmdutil

import (
	"strings"

	"github.com/spf13/cobra"
)

// OtherWords is the annotation of a command with words that are understood after
// it without being commands of ours, separated by blanks: those of smc-tools.
const OtherWords = "other-words"

// Unknown returns the error of a word after cmd that is no command, with the one
// that was probably meant.
func Unknown(cmd *cobra.Command, word string) error {
	var words []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			words = append(words, c.Name())
		}
	}
	words = append(words, strings.Fields(cmd.Annotations[OtherWords])...)
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			words = append(words, c.Aliases...)
		}
	}
	if s := Nearest(word, words); s != "" {
		return UsageError("unknown command %q for %q: did you mean %q?", word, cmd.CommandPath(), s)
	}
	return UsageError("unknown command %q for %q: see '%s --help'", word, cmd.CommandPath(), cmd.CommandPath())
}

// Nearest returns the one of words that somebody who typed word probably meant,
// or "": a word that it begins, else the one that takes the fewest typing errors,
// and of several the first.
func Nearest(word string, words []string) string {
	word = strings.ToLower(word)
	if len(word) < 2 || len(word) > 32 {
		return ""
	}
	for _, w := range words {
		if strings.HasPrefix(w, word) {
			return w
		}
	}
	// One error in a short word, two in a longer one: with more, any word would
	// be near.
	best, nearest := 2, ""
	if len(word) > 4 {
		best = 3
	}
	for _, w := range words {
		if d := distance(word, w); d < best && d < len(w)-1 {
			best, nearest = d, w
		}
	}
	return nearest
}

// distance returns how many letters have to be added, left out, replaced or
// exchanged with their neighbour to make b of a.
func distance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
