// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestTopUp: at rest, a family that is used is filled, and nothing is done for others, or while sockets are taken.
func TestTopUp(t *testing.T) {
	s := newStock()
	wanted := func() (family int) {
		s.topUp()
		select {
		case family = <-s.wanted:
		default:
		}
		return family
	}
	for fd := range stockSize - 1 {
		s.v6 <- fd
	}
	if f := wanted(); f != 0 {
		t.Errorf("family %d is filled that was not seen before", f)
	}
	if _, ok := s.take(unix.AF_INET6); !ok {
		t.Fatal("nothing in stock")
	}
	if f := wanted(); f != 0 {
		t.Errorf("family %d is filled while a socket is taken", f)
	}
	if f := wanted(); f != unix.AF_INET6 {
		t.Errorf("at rest, family %d is filled, want %d", f, unix.AF_INET6)
	}
	for len(s.v6) < stockSize {
		s.v6 <- 0
	}
	for range 2 {
		if f := wanted(); f != 0 {
			t.Errorf("family %d is filled that is full", f)
		}
	}
}
