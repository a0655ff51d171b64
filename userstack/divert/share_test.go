// SPDX-License-Identifier: Apache-2.0

package divert

import "testing"

// TestShare: whatever the limit of open files is, a connection that is announced has its descriptors, and no user takes all.
func TestShare(t *testing.T) {
	spec, err := loadBpf()
	if err != nil {
		t.Fatal(err)
	}
	most := mostFlows(spec)
	for _, tt := range []struct {
		files uint64
		flows int
		want  share
	}{
		{1 << 20, 65536, share{65536, 61440, 4096, 4096}},
		{524288, 65536, share{65536, 61440, 4096, 4096}},
		{65536, 16256, share{16256, 15240, 4096, 1016}},
		{4096, 896, share{896, 840, 448, 56}},
		{1024, 128, share{128, 120, 64, 8}},
		{100, 1, share{1, 1, 1, 0}},
	} {
		n := flowsFor(tt.files, most)
		if n != tt.flows {
			t.Errorf("%d files: %d connections, want %d", tt.files, n, tt.flows)
		}
		if got := shareOf(n, perUserFlows); got != tt.want {
			t.Errorf("%d files: %+v, want %+v", tt.files, got, tt.want)
		}
	}
}
