// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"maps"
	"testing"
)

func TestCounters(t *testing.T) {
	const text = "TcpExt: SyncookiesSent ListenDrops\nTcpExt: 3 4\nIpExt: ListenDrops\nIpExt: 9\n"
	if got, err := counters(text, []string{"ListenDrops"}); err != nil || !maps.Equal(got, map[string]int{"ListenDrops": 4}) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, wrong := range []string{"", text, "TcpExt: None\nTcpExt: many\n"} {
		if got, err := counters(wrong, []string{"None"}); err == nil {
			t.Errorf("%q: got %v", wrong, got)
		}
	}
}
