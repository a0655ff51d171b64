// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"strings"

	"smcr/internal/plain"
)

// plainText returns the text of an error as a launcher gets it, to be read by people in one line.
func plainText(s string) string { return clip(plain.Text(strings.ReplaceAll(s, "\n", "; "))) }
