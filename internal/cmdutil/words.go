// SPDX-License-Identifier: Apache-2.0

package cmdutil

import (
	"strings"

	"smcr/internal/typo"

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
	if s := typo.Nearest(word, words); s != "" && s != word {
		return UsageError("unknown command %q for %q: did you mean %q?", word, cmd.CommandPath(), s)
	}
	return UsageError("unknown command %q for %q: see '%s --help'", word, cmd.CommandPath(), cmd.CommandPath())
}
