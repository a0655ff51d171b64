// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"bytes"
	"sync/atomic"
	"testing"

	"smcr/internal/testing/netnstest"
	"smcr/rdmaverbs/softroce/header"

	"golang.org/x/sys/unix"
)

// ringBatch is a batch for the ring; the PSNs begin with psn.
func ringBatch(psn uint32, sizes ...int) []packet {
	pkts := make([]packet, len(sizes))
	for i, n := range sizes {
		pkts[i] = testPacket(header.WriteOnly, psn+uint32(i), n)
	}
	return pkts
}

func repeat(n, size int) (sizes []int) {
	for range n {
		sizes = append(sizes, size)
	}
	return sizes
}

// checkGot checks that exactly want was received, in order.
func (e *wireEnd) checkGot(t *testing.T, want []packet) {
	t.Helper()
	got := e.wait(t, len(want))
	if len(got) != len(want) {
		t.Fatalf("%d packets, want %d", len(got), len(want))
	}
	for i := range want {
		if !bytes.Equal(got[i].data, flat(want[i])) {
			t.Fatalf("packet %d differs from what was sent", i)
		}
	}
}

// TestSendRing: large and small batches arrive in order, several times around the
// ring.
func TestSendRing(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{MTU: 9000})
	a, b := openEnd(t, pair.A, "eth0"), openEnd(t, pair.B, "eth0")
	p := a.pathV1(b)
	var want []packet
	for i := range uint32(50) {
		batch := ringBatch(100*i, repeat(1+int(i)+ioBatch/2, 4096-int(i))...)
		if i%5 == 4 {
			batch = ringBatch(100*i, 0, 1, 100)
		}
		if err := a.send(p, batch); err != nil {
			t.Fatal(err)
		}
		want = append(want, batch...)
		b.wait(t, len(want))
	}
	b.checkGot(t, want)
	if a.v1.out.ring == nil || len(want) < 2*txSlots {
		t.Errorf("ring in use: %t, %d packets", a.v1.out.ring != nil, len(want))
	}
	if s := a.counters(); s.TxPackets != uint64(len(want)) || s.TxLost != 0 {
		t.Errorf("counters %+v, want %d packets", s, len(want))
	}
	if b.v1.out.ring != nil {
		t.Error("a ring where nothing was sent")
	}
}

// TestSendRingFull: slots that the netdev still uses are not overwritten, and
// packets without a slot are sent without the ring.
func TestSendRingFull(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{MTU: 9000})
	a, b := openEnd(t, pair.A, "eth0"), openEnd(t, pair.B, "eth0")
	p := a.pathV1(b)
	want := ringBatch(0, repeat(10, 4096)...)
	if err := a.send(p, want); err != nil {
		t.Fatal(err)
	}
	held, head := a.v1.out.slot(5), a.v1.out.head
	before := bytes.Clone(held[slotFrame:])
	atomic.StoreUint32(status(held), unix.TP_STATUS_SENDING)
	more := ringBatch(100, repeat(10, 4096)...)
	if err := a.send(p, more); err != nil {
		t.Fatal(err)
	}
	want = append(want, more...)
	b.checkGot(t, want)
	if a.v1.out.head != head || !bytes.Equal(held[slotFrame:], before) {
		t.Error("the ring was used")
	}
	atomic.StoreUint32(status(held), unix.TP_STATUS_AVAILABLE)
	more = ringBatch(200, repeat(10, 4096)...)
	if err := a.send(p, more); err != nil {
		t.Fatal(err)
	}
	want = append(want, more...)
	b.checkGot(t, want)
	if a.v1.out.head != head+10 {
		t.Error("the ring is not used again")
	}
}

// TestSendRingRefused: a packet that exceeds the present MTU is lost. The
// packets before and after it are not lost, and neither are those sent after
// the netdev was down.
func TestSendRingRefused(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{MTU: 9000})
	a, b := openEnd(t, pair.A, "eth0"), openEnd(t, pair.B, "eth0")
	p := a.pathV1(b)
	ip(t, pair.A, "link", "set", "eth0", "mtu", "1500")
	sizes := append(append(repeat(10, 1024), 4096, 2048), repeat(10, 1024)...)
	batch := ringBatch(0, sizes...)
	want := append(append([]packet(nil), batch[:10]...), batch[12:]...)
	if err := a.send(p, batch); err != nil {
		t.Fatal(err)
	}
	b.checkGot(t, want)
	if s := a.counters(); s.TxLost != 2 || s.TxPackets != 20 {
		t.Errorf("counters %+v, want 20 sent, 2 lost", s)
	}
	if err := pair.A.SetLink(0, false); err != nil {
		t.Fatal(err)
	}
	if err := a.send(p, ringBatch(100, repeat(10, 1024)...)); err != nil {
		t.Errorf("send with the netdev down: %v", err)
	}
	if s := a.counters(); s.TxLost != 12 {
		t.Errorf("counters %+v, want 12 lost", s)
	}
	if err := pair.A.SetLink(0, true); err != nil {
		t.Fatal(err)
	}
	more := ringBatch(200, repeat(10, 1024)...)
	if err := a.send(p, more); err != nil {
		t.Fatal(err)
	}
	b.checkGot(t, append(want, more...))
}

// TestWithoutSendRing: the same batches arrive without a ring.
func TestWithoutSendRing(t *testing.T) {
	pair := netnstest.New(t, netnstest.Options{MTU: 9000})
	a, b := openQuiet(t, pair.A, "eth0", WithoutSendRing()), openEnd(t, pair.B, "eth0")
	if a.v1.out != nil {
		t.Fatal("there is a ring")
	}
	want := ringBatch(0, repeat(ioBatch, 4096)...)
	if err := a.send(a.pathV1(b), want); err != nil {
		t.Fatal(err)
	}
	b.checkGot(t, want)
}
