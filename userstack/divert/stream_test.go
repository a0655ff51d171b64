// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"smcr/internal/testing/testkind"
)

// TestClosedBeforeMade has a connection that ends before its socket is made: the socket does not stay, so that the addresses and ports can be
// used again.
func TestClosedBeforeMade(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	tuple := Tuple{netip.MustParseAddrPort("10.77.0.1:3001"), netip.MustParseAddrPort("10.77.0.2:3002")}
	e := end{snd: 1, rcv: 1, mss: 1000}
	for range 3 {
		s := &stream{end: e}
		s.close()
		if err := s.connect(b.d[0].ns, tuple); !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v, want that it is closed", err)
		}
	}
	s := &stream{end: e}
	b.must(s.connect(b.d[0].ns, tuple))
	s.close()
}
