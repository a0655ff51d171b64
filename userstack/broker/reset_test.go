// SPDX-License-Identifier: Apache-2.0

package broker

import "testing"

// TestResetText: the reason of a reset is that of the service, and nothing else is one.
func TestResetText(t *testing.T) {
	for text, want := range map[string]string{
		ResetText(""): "", ResetText("retries"): "retries", "": "", "internal error": "", "reset": "",
	} {
		if got := ResetReason(text); got != want {
			t.Errorf("%q: reason %q, want %q", text, got, want)
		}
	}
}
