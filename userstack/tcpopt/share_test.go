// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// TestAdopt passes the program on three times. Listeners that the first Program has
// marked announce SMC without interruption, connections that were made before keep what
// their peers announced, and the last Program marks sockets like the first.
func TestAdopt(t *testing.T) {
	b := newBed(t)
	capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
	l := b.bind(b.B, unix.AF_INET, "0.0.0.0", 4001)
	b.must(b.prog.GateListen(l, 0))
	b.must(unix.Listen(l, 8))
	before := b.dial(l, true)
	for range 3 {
		files, err := b.prog.Share()
		b.must(err)
		next, err := Adopt(files, Options{})
		b.must(err)
		b.must(b.prog.Close())
		b.prog = next
		t.Cleanup(func() { _ = next.Close() })
	}
	b.wantPeer("server, from before", before.server, PeerSMC)
	if g, err := b.prog.Gate(before.server); g == nil || err != nil {
		t.Errorf("gate of a connection from before: %v, %v", g, err)
	}
	after := b.dial(l, true)
	b.wantPeer("client", after.client, PeerSMC)
	b.wantPeer("server", after.server, PeerSMC)
	b.must(b.prog.Close())
	last := b.connect(b.socket(b.A, unix.AF_INET), l, unix.AF_INET, b.B.Addr())
	b.exchange(last)
	segs := b.segments(capture)
	wantAnnounced(t, segs, "before", before, true, true)
	wantAnnounced(t, segs, "adopted", after, true, true)
	wantAnnounced(t, segs, "after the last Close", last, false, false)
}

// TestAdoptOther checks that files that nobody has shared are refused.
func TestAdoptOther(t *testing.T) {
	b := newBed(t)
	files, err := b.prog.Share()
	b.must(err)
	few := files[:3]
	for _, f := range files[3:] {
		_ = f.Close()
	}
	if _, err := Adopt(few, Options{}); !errors.Is(err, os.ErrInvalid) {
		t.Errorf("three files: %v", err)
	}
	var null []*os.File
	for range shared {
		f, err := os.Open(os.DevNull)
		b.must(err)
		null = append(null, f)
	}
	if p, err := Adopt(null, Options{}); err == nil {
		t.Error("files without eBPF are adopted", p)
	}
	b.must(b.prog.Close())
	if _, err := b.prog.Share(); !errors.Is(err, ErrClosed) {
		t.Errorf("share after Close: %v", err)
	}
}
