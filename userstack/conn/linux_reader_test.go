// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"testing"

	"smcr/userstack/wire"
)

// linuxReader is the receive side of Linux' SMC: its cursors, the number of
// bytes that it thinks can be read, and when it sends its consumer cursor
// (net/smc/smc_rx.c, smc_cdc.c and smc_tx.c, Linux 6.12).
type linuxReader struct {
	rmb        [16384]byte
	prod, cons uint64
	confirmed  uint64
	bytes      int // to be read
	urg        uint64
	ubyte      byte
	valid      bool // the urgent byte was not read
	skip       bool // it is to be skipped
	inline     bool
	wanted     bool // the cursor is asked for
	blocked    bool
	prompt     bool // what no Linux since 5.18 does: answer requests at once
	mended     bool // what no Linux does: step over a byte that is taken
	out        []uint64
}

func (x *linuxReader) arrive(prod uint64, f wire.ProducerFlags) {
	n := int(prod - x.prod)
	x.prod = prod
	x.wanted = f&wire.ProdCursorRequest != 0
	x.blocked = f&wire.ProdWriterBlocked != 0
	switch {
	case n > 0 && f&wire.ProdUrgentPresent != 0:
		x.urg, x.valid = prod, true
		x.ubyte = x.rmb[(prod-1)%uint64(len(x.rmb))]
		if !x.inline {
			n--
		}
	case n == 0 && f&wire.ProdUrgentPending != 0:
		x.valid = false
	}
	x.bytes += n
	if x.prompt && x.wanted {
		x.tell()
	}
}

// tell sends the consumer cursor.
func (x *linuxReader) tell() {
	x.out = append(x.out, x.cons)
	x.confirmed, x.wanted = x.cons, false
}

func (x *linuxReader) update(n int) {
	x.cons += uint64(n)
	force := false
	if x.valid || x.skip {
		switch left := int64(x.urg - x.cons); {
		case x.inline && left == 0:
			force, x.valid = true, false
		case !x.inline && left == 1:
			x.cons++
			force, x.skip = true, false
		case !x.inline && left < -1:
			x.valid = false
		}
	}
	size := uint64(len(x.rmb))
	open := x.cons-x.confirmed > size/10 && (size-(x.prod-x.confirmed) <= size/2 || x.blocked)
	if x.wanted || force || open {
		x.tell()
	}
	if x.bytes == 0 {
		x.blocked = false
	}
}

// recv is recv() for at most so many bytes. A program that polls does not call
// it while nothing can be read, and so does not step over an urgent byte.
func (x *linuxReader) recv(most int, polls bool) string {
	if x.bytes == 0 {
		if x.valid && !polls {
			x.update(0)
		}
		return ""
	}
	n := x.bytes
	if x.valid && x.inline && n > 1 {
		n--
	}
	n = min(n, most)
	b := make([]byte, n)
	for i := range b {
		b[i] = x.rmb[(x.cons+uint64(i))%uint64(len(x.rmb))]
	}
	x.bytes -= n
	x.update(n)
	return string(b)
}

// recvOOB is recv(MSG_OOB).
func (x *linuxReader) recvOOB() (byte, bool) {
	if !x.valid || x.inline {
		return 0, false
	}
	x.valid = false
	if x.urg-x.cons > 1 && x.urg > x.cons || x.mended {
		x.skip = true
	}
	x.update(0)
	return x.ubyte, true
}

// linuxRig is a connection with a linuxReader.
type linuxRig struct {
	*rig
	x *linuxReader
}

func newLinuxRig(t *testing.T, x *linuxReader) *linuxRig {
	return &linuxRig{rig: newRig(t, settings{stopsAtUrgent: true}), x: x}
}

// write produces s, of which the last byte may be urgent.
func (r *linuxRig) write(s string, urgent bool) {
	r.t.Helper()
	a, b, _ := r.c.SendSpace(len(s), 0)
	if len(a)+len(b) < len(s) {
		r.t.Fatalf("no room for %d bytes", len(s))
	}
	copy(b, s[copy(a, s):])
	if urgent {
		r.c.ProducedUrgent(r.now, len(s))
	} else {
		r.c.Produced(r.now, len(s))
	}
}

// arrive takes one action to the reader. It returns false if there is none.
func (r *linuxRig) arrive() bool {
	if len(r.acts) == 0 {
		return false
	}
	a := r.acts[0]
	r.acts = r.acts[1:]
	switch {
	case a.k != nil:
		copy(r.x.rmb[a.at:][:a.n], a.k.Mem[a.off:])
	case a.m.Flags&wire.ProdFailoverVerify == 0:
		n, ok := r.c.p.out.elem.ahead(a.m.Prod, r.x.prod)
		if !ok || r.x.prod+n > r.x.cons+uint64(len(r.x.rmb)) {
			r.t.Fatalf("producer cursor %d:%d overruns the element", a.m.Prod.Wrap, a.m.Prod.Count)
		}
		r.x.arrive(r.x.prod+n, a.m.Flags)
	}
	return true
}

// answer takes one message of the reader to the connection. It returns false if
// there is none.
func (r *linuxRig) answer() bool {
	if len(r.x.out) == 0 {
		return false
	}
	m := r.cdc()
	m.Cons = r.tx(r.x.out[0])
	r.x.out = r.x.out[1:]
	r.recv(m)
	return true
}

// complete completes what has arrived.
func (r *linuxRig) complete() {
	if len(r.acts) == 0 {
		r.deliver()
	}
}

// deliverAll delivers everything.
func (r *linuxRig) deliverAll() {
	for r.arrive() || r.answer() || len(r.outstanding) > 0 {
		r.complete()
	}
}
