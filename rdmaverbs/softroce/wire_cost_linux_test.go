// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"encoding/binary"
	"slices"
	"testing"
	"unsafe"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"

	"golang.org/x/sys/unix"
)

// costTrain is a train of RDMA WRITE packets of 1 KiB as it fits one datagram.
func costTrain() []packet {
	pkts := make([]packet, 61)
	for i := range pkts {
		pkts[i] = testPacket(header.WriteOnly, uint32(i), 1<<10)
		pkts[i].payload = [2][]byte{make([]byte, 1<<10)}
	}
	return pkts
}

// costPath is a path that needs no socket.
var costPath = path{
	typ:  rdmaverbs.RoCEv2,
	sgid: smc.GID{10: 0xff, 11: 0xff, 12: 10, 15: 1},
	dgid: smc.GID{10: 0xff, 11: 0xff, 12: 10, 15: 2},
}

const costPort = 61000

func costWire() *netWire {
	w := &netWire{v2: &udpPorts{ids: header.NewIDSolver()}}
	for i := range w.v2.tx.sock[udp4] {
		w.v2.tx.sock[udp4][i] = udpSource{fd: 1 << 20, port: costPort}
	}
	w.self.Store(&identity{v2: []smc.GID{costPath.dgid}})
	return w
}

// encode makes the message of a train.
func encode(w *netWire, tx *txBatch, pkts []packet) {
	t := &tx.v2
	w.target(tx, t, w.sources(), &costPath)
	tx.message(0, 0, pkts, t)
}

// received is the state of a socket's reader that got the message of tx.
func received(tx *txBatch, segment int) (*rxBatch, udpMeta) {
	rx := newRxBatch()
	rx.udp = newUDPRx()
	m := &tx.msgs[0].hdr
	n := 0
	for _, v := range unsafe.Slice(m.Iov, m.Iovlen) {
		n += copy(rx.udp.buf[n:], unsafe.Slice(v.Base, v.Len))
	}
	rx.udp.msgs[0].n = uint32(n)
	return rx, udpMeta{src: costPath.sgid, dst: costPath.dgid, srcPort: costPort, segment: segment, ok: true}
}

// TestEncode checks what a message of many packets consists of: the packets
// themselves, each with its pad and an ICRC that a receiver takes.
func TestEncode(t *testing.T) {
	w, tx := costWire(), new(txBatch)
	pkts := []packet{testPacket(header.WriteOnly, 1, 1021), testPacket(header.WriteOnly, 2, 1021), testPacket(header.SendOnly, 3, 43)}
	encode(w, tx, pkts)
	rx, m := received(tx, datagramLen(&pkts[0]))
	w.v2.split(0, udp4, &m, rx, w.self.Load(), &w.stats)
	if len(rx.in) != len(pkts) {
		t.Fatalf("%d packets arrive, want %d: %+v", len(rx.in), len(pkts), w.stats.snapshot())
	}
	for i, p := range pkts {
		if !slices.Equal(rx.in[i].data, flat(p)) {
			t.Errorf("packet %d arrives as\n%x, want\n%x", i, rx.in[i].data, flat(p))
		}
	}
	var cm unix.Cmsghdr
	c := unsafe.Slice(tx.msgs[0].hdr.Control, tx.msgs[0].hdr.Controllen)
	if got := binary.NativeEndian.Uint16(c[len(c)-unix.CmsgSpace(2)+int(unsafe.Sizeof(cm)):]); int(got) != datagramLen(&pkts[0]) {
		t.Errorf("the message is cut into pieces of %d bytes, want %d", got, datagramLen(&pkts[0]))
	}
}

func TestEncodeNoAllocs(t *testing.T) {
	w, tx, pkts := costWire(), new(txBatch), costTrain()
	encode(w, tx, pkts)
	rx, m := received(tx, datagramLen(&pkts[0]))
	if n := testing.AllocsPerRun(100, func() { encode(w, tx, pkts) }); n != 0 {
		t.Errorf("%v allocations a message sent", n)
	}
	if n := testing.AllocsPerRun(100, func() {
		w.v2.split(0, udp4, &m, rx, w.self.Load(), &w.stats)
		rx.reset()
	}); n != 0 {
		t.Errorf("%v allocations a message received", n)
	}
}

// BenchmarkEncode makes messages of trains, without sending them; an operation is
// a packet.
func BenchmarkEncode(b *testing.B) {
	w, tx, pkts := costWire(), new(txBatch), costTrain()
	b.SetBytes(1 << 10)
	b.ReportAllocs()
	for n := 0; n < b.N; n += len(pkts) {
		encode(w, tx, pkts)
	}
}

// BenchmarkSplit takes such messages apart and checks the packets.
func BenchmarkSplit(b *testing.B) {
	w, tx, pkts := costWire(), new(txBatch), costTrain()
	encode(w, tx, pkts)
	rx, m := received(tx, datagramLen(&pkts[0]))
	b.SetBytes(1 << 10)
	b.ReportAllocs()
	for n := 0; n < b.N; n += len(pkts) {
		w.v2.split(0, udp4, &m, rx, w.self.Load(), &w.stats)
		if len(rx.in) != len(pkts) {
			b.Fatalf("%d packets of %d", len(rx.in), len(pkts))
		}
		rx.reset()
	}
}
