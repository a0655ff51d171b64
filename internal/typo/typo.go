// SPDX-License-Identifier: Apache-2.0

package typo

import (
	"fmt"
	"strings"
)

// Meant returns the question that helps with a wrong word: did you mean "WORD"? If no word is
// near, it returns what to do otherwise.
func Meant(word string, words []string, otherwise string) string {
	if near := Nearest(word, words); near != "" && near != word {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return otherwise
}

// Choose returns the text about a value that is none of a few: choose one of A, B, and the
// one that was probably meant.
func Choose(word string, words []string) string {
	text := "choose one of " + strings.Join(words, ", ")
	if near := Nearest(word, words); near != "" {
		text += fmt.Sprintf(": did you mean %q?", near)
	}
	return text
}

// Nearest returns the one of words that somebody who typed word probably meant,
// or "": a word that it begins, else the one that takes the fewest typing errors, and of
// several the first. Upper and lower case are the same. The result is one of words as it is.
func Nearest(word string, words []string) string {
	word = strings.ToLower(word)
	if len(word) < 2 || len(word) > 32 {
		return ""
	}
	for _, w := range words {
		if strings.HasPrefix(strings.ToLower(w), word) {
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
		if d := distance(word, strings.ToLower(w)); d < best && d < len(w)-1 {
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
