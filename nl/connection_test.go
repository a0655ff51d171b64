// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"testing"

	"smcr/smc"
)

// TestCarried: neither a socket that listens nor a connection that is TCP ends with the stack.
func TestCarried(t *testing.T) {
	all := []Connection{
		{Mode: ModeSMCR, State: smc.StateActive}, {Mode: ModeSMCD, State: smc.StateActive}, {Mode: ModeSMCR, State: smc.StatePeerAbortWait},
		{State: smc.StateListen}, {Mode: ModeTCP, State: smc.StateActive}, {Mode: ModeTCP, State: smc.StateListen},
	}
	if n := CountCarried(all); n != 3 {
		t.Errorf("%d connections, want 3", n)
	}
}
