// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// TestLend: a descriptor stays open until it is given back, also if its stream is closed before, and not longer.
func TestLend(t *testing.T) {
	testkind.System(t)
	pair := func() (*stream, int) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fds[1]) })
		return &stream{fd: fds[0]}, fds[1]
	}
	isOpen := func(peer int) bool {
		_, err := unix.Write(peer, []byte{0})
		return err == nil
	}
	for _, revokes := range []bool{false, true} {
		s, peer := pair()
		var revoke func()
		revoked := false
		if revokes {
			revoke = func() { revoked = true }
		}
		fd, giveBack, err := s.lend(revoke)
		if err != nil || fd != s.fd {
			t.Fatal(fd, err)
		}
		if _, _, err := s.lend(nil); !errors.Is(err, net.ErrClosed) {
			t.Errorf("lent twice: %v", err)
		}
		s.close()
		if revoked != revokes {
			t.Errorf("revoked: %t, want %t", revoked, revokes)
		}
		if !isOpen(peer) {
			t.Error("closed while it is lent")
		}
		if giveBack(); isOpen(peer) {
			t.Error("open after it was given back")
		}
		s.close()
	}
	s, peer := pair()
	_, giveBack, err := s.lend(nil)
	if err != nil {
		t.Fatal(err)
	}
	if giveBack(); !isOpen(peer) {
		t.Error("closed by what gave it back")
	}
	if s.close(); isOpen(peer) {
		t.Error("open after its stream was closed")
	}
	// Who has to give it back may do so when it is revoked.
	s, peer = pair()
	if _, giveBack, err = s.lend(func() { giveBack() }); err != nil {
		t.Fatal(err)
	}
	if s.close(); isOpen(peer) {
		t.Error("open after it was revoked")
	}
	if _, _, err := s.lend(nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a closed one is lent: %v", err)
	}
}
