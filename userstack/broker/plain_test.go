// SPDX-License-Identifier: Apache-2.0

package broker

import "testing"

// TestPlainText: a reason is one line.
func TestPlainText(t *testing.T) {
	if got, want := plainText("conn: connection reset by peer\nthe peer did not answer"), "connection reset by peer; the peer did not answer"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
