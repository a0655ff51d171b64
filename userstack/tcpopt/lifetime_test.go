// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

func TestCloseDetaches(t *testing.T) {
	b := newBed(t)
	capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
	l := b.listener(unix.AF_INET, "0.0.0.0", 4001, true)
	before := b.dial(l, true)
	fd := b.socket(b.A, unix.AF_INET)
	b.must(b.prog.MarkConnect(fd))
	b.must(b.prog.Close())
	b.must(b.prog.Close())
	after := b.connect(fd, l, unix.AF_INET, b.B.Addr())
	b.exchange(after)
	b.exchange(before)
	_, peerErr := b.prog.Peer(fd)
	for what, err := range map[string]error{
		"MarkConnect": b.prog.MarkConnect(fd), "MarkListen": b.prog.MarkListen(fd),
		"Peer": peerErr,
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after Close: %v", what, err)
		}
	}
	segs := b.segments(capture)
	wantAnnounced(t, segs, "before Close", before, true, true)
	wantAnnounced(t, segs, "after Close", after, false, false)
}

// TestCloseWhileUsed closes a Program while others use it, under the race detector.
func TestCloseWhileUsed(t *testing.T) {
	b := newBed(t)
	l := b.listener(unix.AF_INET, "0.0.0.0", 4001, false)
	fd := b.socket(b.A, unix.AF_INET)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				_, err := b.prog.Peer(fd)
				err = errors.Join(err, b.prog.MarkConnect(fd), b.prog.MarkListen(l))
				if errors.Is(err, ErrClosed) {
					return
				}
				if err != nil && !errors.Is(err, ErrNotMarked) && !errors.Is(err, ErrListening) {
					t.Error(err)
					return
				}
			}
		})
	}
	b.must(b.prog.Close())
	wg.Wait()
}

// TestStacksSideBySide attaches two programs, like the stacks of two namespaces.
func TestStacksSideBySide(t *testing.T) {
	b := newBed(t)
	other := attach(t, Options{})
	capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
	l := b.bind(b.B, unix.AF_INET, "0.0.0.0", 4001)
	b.must(other.MarkListen(l))
	b.must(unix.Listen(l, 8))

	apart := b.dial(l, true)
	b.wantPeer("client", apart.client, PeerSMC)
	b.wantPeer("server, of the stack that does not know it", apart.server, unmarked)
	if s, err := other.Peer(apart.server); s != PeerSMC || err != nil {
		t.Errorf("server: %v, %v", s, err)
	}
	if _, err := other.Peer(apart.client); !errors.Is(err, ErrNotMarked) {
		t.Errorf("client, of the stack that does not know it: %v", err)
	}

	// Both stacks mark the same sockets: the option is sent once, and both report the
	// same state.
	b.markListening(l)
	fd := b.socket(b.A, unix.AF_INET)
	b.must(b.prog.MarkConnect(fd))
	b.must(other.MarkConnect(fd))
	both := b.connect(fd, l, unix.AF_INET, b.B.Addr())
	for _, p := range []*Program{b.prog, other} {
		for _, fd := range []int{both.client, both.server} {
			if s, err := p.Peer(fd); s != PeerSMC || err != nil {
				t.Errorf("marked twice: %v, %v", s, err)
			}
		}
	}

	// One program is closed, the other still works.
	b.must(b.prog.Close())
	fd = b.socket(b.A, unix.AF_INET)
	b.must(other.MarkConnect(fd))
	left := b.connect(fd, l, unix.AF_INET, b.B.Addr())
	if s, err := other.Peer(left.server); s != PeerSMC || err != nil {
		t.Errorf("after the other left: %v, %v", s, err)
	}
	segs := b.segments(capture)
	wantAnnounced(t, segs, "apart", apart, true, true)
	wantAnnounced(t, segs, "both", both, true, true)
	wantAnnounced(t, segs, "left", left, true, true)
}
