// SPDX-License-Identifier: Apache-2.0

package broker

import "strings"

// resetPrefix is the beginning of the Text of TypeBroken and TypeClosed for a connection that was
// reset for a reason that the service knows.
const resetPrefix = "reset: "

// ResetText returns the Text of TypeClosed for a connection that was reset: with why, or without
// a reason if why is "".
func ResetText(why string) string {
	if why == "" {
		return "reset"
	}
	return resetPrefix + why
}

// ResetReason returns the reason in a text of [ResetText], or "".
func ResetReason(text string) string {
	why, ok := strings.CutPrefix(text, resetPrefix)
	if !ok {
		return ""
	}
	return why
}
