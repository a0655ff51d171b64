// SPDX-License-Identifier: Apache-2.0

package bounded

import (
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
)

// TestResetConn: the peer sees a reset. If the lock of the socket is held, nobody waits
// for it, and other resets are not delayed. The reset follows when the lock is released.
func TestResetConn(t *testing.T) {
	wantReset := func(c interface {
		Read([]byte) (int, error)
		SetReadDeadline(time.Time) error
	}) {
		t.Helper()
		_ = c.SetReadDeadline(time.Now().Add(testkind.Patience))
		b := make([]byte, 1<<16)
		for {
			_, err := c.Read(b)
			if errors.Is(err, unix.ECONNRESET) {
				return
			}
			if err != nil {
				t.Errorf("%v, want a reset", err)
				return
			}
		}
	}
	free, peer := socktest.TCPPair(t)
	if err := ResetConn(free, 1000); err != nil {
		t.Error(err)
	}
	wantReset(peer)

	locked, lockedPeer := socktest.TCPPair(t)
	f, err := locked.File() // the descriptor of the program
	if err != nil {
		t.Fatal(err)
	}
	release := socktest.Hold(t, int(f.Fd()))
	if err := ResetConn(locked, 1000); err != nil {
		t.Error(err)
	}
	for range 10 {
		other, otherPeer := socktest.TCPPair(t)
		if err := ResetConn(other, 1001); err != nil {
			t.Error(err)
		}
		wantReset(otherPeer)
	}
	release() // and until now nobody has waited for the lock, or the test would stand still
	_ = f.Close()
	wantReset(lockedPeer)
	testkind.Eventually(t, "a reset is under way still", func() (any, bool) { return stuck.Load(), stuck.Load() == 0 })
}
