// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"strconv"
	"testing"

	"smcr/internal/testing/testkind"
)

// TestRelisten: a port is free when the close() of its listening socket has returned, after each
// way in which accept() can end. A call that goes on keeps it in use, as the kernel does.
func TestRelisten(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	for _, tt := range []struct {
		what   string
		rounds int
	}{
		{"interrupted", 20}, {"threads", 20}, {"again", 60}, {"timeout", 20}, {"killed", 10}, {"killed threads", 10},
		{"one shot", 60}, {"waits", 20}, {"closed", 6}, {"shut down", 6}, {"group", 8}, {"child closes", 10},
	} {
		// One after the other: the launcher is a part of this process, and until exec() a new process
		// has all its descriptors, among them copies of listening sockets.
		t.Run(tt.what, func(t *testing.T) {
			stack := &fakeStack{t: t}
			cfg := Config{Argv: []string{"timeout", "60", "python3", "testdata/relisten.py", tt.what, strconv.Itoa(tt.rounds)}, Broker: stack.client(), NoAdapt: true}
			if res := launchedWith(t, t.Context(), cfg, ""); res.status != 0 || res.out != "over\n" {
				t.Errorf("status %d, %q", res.status, res.out)
			}
		})
	}
}
