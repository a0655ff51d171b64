// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"testing"

	"smcr/internal/testing/sharetest"
)

// TestRefusing: users who are refused as often as they can leave others their answer why.
func TestRefusing(t *testing.T) {
	s := NewServer(nil, ServerConfig{})
	defer s.Close()
	got := sharetest.Users(t, 5, func(uid uint32) bool {
		if !s.mayWait(uid) {
			return false
		}
		s.refusing.Add(uid)
		return true
	})
	if got[0] != userRefusing {
		t.Errorf("the first user has %d", got[0])
	}
}
