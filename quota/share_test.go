// SPDX-License-Identifier: Apache-2.0

package quota

import "testing"

// TestFair: however many users have taken all that they can, up to the logarithm of the table, the
// next one gets something. Who comes first gets the share.
func TestFair(t *testing.T) {
	for _, tt := range []struct{ share, most, users int }{
		{2, 8, 5}, {64, 512, 14}, {1024, 8192, 18}, {2048, 7168, 14}, {2048, 8192, 14}, {8192, 65536, 21}, {500, 1000, 9}, {1, 3, 3}, {3, 1, 1},
	} {
		used := 0
		for user := range tt.users {
			own := 0
			for Fair(own, 1, tt.share, used, tt.most) {
				own, used = own+1, used+1
			}
			if own == 0 {
				t.Errorf("%+v: user %d gets nothing", tt, user+1)
			}
			if want := min(tt.share, tt.most); user == 0 && own != want {
				t.Errorf("%+v: the first user gets %d", tt, own)
			}
			if own > tt.share || used > tt.most {
				t.Errorf("%+v: user %d has %d, of %d", tt, user+1, own, used)
			}
		}
	}
	if Fair(0, 5, 10, 6, 10) || Fair(6, 5, 10, 6, 100) || !Fair[int64](6, 4, 10, 6, 100) {
		t.Error("several at once")
	}
}
