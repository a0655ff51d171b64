// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"testing"

	"smcr/userstack/wire"
)

func TestRefusal(t *testing.T) {
	const other = "single link: the peer has no other device in this subnet or with this pnetid"
	for reason, want := range map[wire.AddLinkReason]string{
		0: other, wire.AddLinkNoAlternatePath: other,
		wire.AddLinkInvalidMTU: "single link: the peer refused a second one: invalid MTU",
		7:                      "single link: the peer refused a second one: reason 7",
	} {
		if got := refusal(reason); got != want {
			t.Errorf("%d: %q, want %q", reason, got, want)
		}
	}
}
