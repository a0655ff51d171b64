// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"smcr/internal/testing/testkind"
)

// TestDescribeFrames checks describeFrames with captures of two Linux kernels.
func TestDescribeFrames(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	const clc = "clc: client Proposal, server Accept, client Confirm\n"
	for _, tt := range []struct {
		name string
		port uint16
		want string
	}{
		{"b_half_close", 9333, clc + "cdc: client D, server D, client DC, server DC\nclient flags: \nserver flags: \ntcp: ended in order\n"},
		{"c2_close_unread", 9612, clc + "cdc: client A, server A\nclient flags: \nserver flags: \ntcp: ended in order\n"},
		{"e2_urgent_oob_blocking", 9458, clc + "cdc: client C, server C\nclient flags: PU\nserver flags: \ntcp: ended in order\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			frames := readCapture(t, "testdata/captures/"+tt.name+".cli.pcap")
			got, err := describeFrames(frames, tt.port, unsure{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if list := unanswered(frames); list != nil {
				t.Errorf("LLC requests without a reply: %q", list)
			}
		})
	}
}
