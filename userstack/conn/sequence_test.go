// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"testing"
)

// TestSequenceNumbers: CDC messages count from 1 and wrap to 0; one that is not
// newer than the last, by signed difference, is dropped (RFC 7609, section 4.3
// and appendix A.4).
func TestSequenceNumbers(t *testing.T) {
	t.Run("sent", func(t *testing.T) {
		r := newRig(t, settings{})
		for want := range 1<<16 + 2 {
			r.send(1)
			if m := r.last; m.Seq != uint16(want+1) {
				t.Fatalf("message %+v, want sequence number %d", m, uint16(want+1))
			}
			r.done()
			r.got(1)
			r.acts = nil
		}
	})
	t.Run("received", func(t *testing.T) {
		r := newRig(t, settings{})
		for _, tt := range []struct {
			seq   uint16
			taken bool
		}{
			{1, true}, {1, false}, {0, false}, {65535, false}, {2, true}, {4, true}, {3, false},
			{4 + 32767, true}, {4, false}, {65535, true}, {0, true}, {65535, false}, {1, true}, {0, false}, {1, false},
		} {
			m := r.cdc()
			m.Seq, m.Prod = tt.seq, r.rx(r.at().Received+1)
			before := r.at().Received
			r.recv(m)
			if taken := r.at().Received == before+1; taken != tt.taken {
				t.Errorf("message %d after %d: taken %v, want %v", tt.seq, r.c.p.in.seq, taken, tt.taken)
			}
		}
	})
}
