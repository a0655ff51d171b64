// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"context"
	"errors"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"smcr/nl"
	"smcr/rdmaverbs"
	"smcr/smc"
)

// begin begins a trace.
func begin(t *testing.T, h *Hub, types nl.TraceTypes, group nl.LinkGroupID) uint32 {
	t.Helper()
	x, err := h.Trace(t.Context(), nl.TraceRequest{Types: types, Group: group}, func() []nl.TraceConn { return []nl.TraceConn{{Token: 7}} })
	if err != nil || len(x.Conns) != 1 || x.ID == 0 {
		t.Fatal(x, err)
	}
	return x.ID
}

// take returns the events since the last call.
func take(t *testing.T, h *Hub, id uint32) nl.Trace {
	t.Helper()
	x, err := h.Trace(t.Context(), nl.TraceRequest{ID: id}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func message(group nl.LinkGroupID, first byte) Message {
	return Message{Group: group, RoCE: 2, Local: smc.GID{15: 1}, Remote: smc.GID{15: 2}, QPN: 3, PeerQPN: 4, Bytes: []byte{first, 44}}
}

// fill passes one event of each type to the hub, as a stack does.
func fill(h *Hub) {
	if !h.On() {
		return
	}
	h.Add(nl.TraceEvent{Type: nl.TraceCLC, Data: []byte("clc")})
	h.Message(message(0x100, 1))
	h.Message(message(0x200, 0xfe))
	if see := h.Packets().Load(); see != nil {
		hdr := []byte("header")
		see(&rdmaverbs.TracedPacket{Tag: 0x100, Header: hdr, PayloadLen: 3, PadLen: 1})
		see(&rdmaverbs.TracedPacket{Tag: 0x100, Header: hdr, PayloadLen: 3, PadLen: 1, Message: [2][]byte{[]byte("a"), []byte("bc")}})
		copy(hdr, "reused")
	}
}

func TestSelection(t *testing.T) {
	for _, test := range []struct {
		types nl.TraceTypes
		group nl.LinkGroupID
		want  []nl.TraceTypes
	}{
		{nl.TraceCLC, 0, []nl.TraceTypes{nl.TraceCLC}},
		{nl.TraceLLC | nl.TraceCDC, 0, []nl.TraceTypes{nl.TraceLLC, nl.TraceCDC}},
		{nl.TraceLLC | nl.TraceCDC, 0x100, []nl.TraceTypes{nl.TraceLLC}},
		{nl.TraceCDC, 0x201, []nl.TraceTypes{nl.TraceCDC}}, // the last byte does not matter
		{nl.TraceCDC | nl.TraceRoCE, 0, []nl.TraceTypes{nl.TraceRoCE, nl.TraceRoCE}},
		{nl.TraceCLC, 0x100, nil},
	} {
		var h Hub
		fill(&h)
		id := begin(t, &h, test.types, test.group)
		fill(&h)
		if test.want == nil {
			h.Add(nl.TraceEvent{Type: nl.TraceCLC, Group: 0x100}) // so that nothing waits
			test.want = []nl.TraceTypes{nl.TraceCLC}
		}
		var got []nl.TraceTypes
		for _, e := range take(t, &h, id).Events {
			got = append(got, e.Type)
			if e.Time.IsZero() {
				t.Errorf("no time: %+v", e)
			}
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%+v: %v", test, got)
		}
	}
}

// TestPackets checks the events of packets: without the bytes of programs, and whole if they
// are messages.
func TestPackets(t *testing.T) {
	var h Hub
	id := begin(t, &h, nl.TraceRoCE, 0)
	fill(&h)
	x := take(t, &h, id)
	if len(x.Events) != 2 {
		t.Fatal(x)
	}
	for i, want := range []string{"header", "headerabc\x00"} {
		if e := x.Events[i]; string(e.Data) != want || e.Length != 10 || e.Group != 0x100 {
			t.Errorf("%+v, want %q of 10 bytes", e, want)
		}
	}
}

// TestOff checks that nothing is open before the first trace and after the last one.
func TestOff(t *testing.T) {
	var h Hub
	off := func() bool { return !h.On() && h.Packets().Load() == nil }
	if !off() || (*Hub)(nil).On() || (*Hub)(nil).Packets().Load() != nil {
		t.Error("open at the beginning")
	}
	a, b := begin(t, &h, nl.TraceCLC, 0), begin(t, &h, nl.TraceRoCE, 0)
	if !h.On() || h.Packets().Load() == nil {
		t.Error("closed while there are traces")
	}
	for _, id := range []uint32{b, a} {
		if _, err := h.Trace(t.Context(), nl.TraceRequest{ID: id, End: true}, nil); err != nil {
			t.Error(err)
		}
		if h.Packets().Load() != nil {
			t.Error("packets are traced for nobody")
		}
	}
	if !off() {
		t.Error("open at the end")
	}
	// A trace whose owner is gone ends with the next event.
	begin(t, &h, nl.TraceRoCE, 0)
	for _, x := range h.traces {
		x.asked = time.Now().Add(-time.Minute)
	}
	fill(&h)
	if !off() {
		t.Error("a trace outlives its owner")
	}
}

func TestBounds(t *testing.T) {
	var h Hub
	id := begin(t, &h, nl.TraceCDC, 0)
	for range MaxEvents + 5 {
		h.Message(message(1, 0xfe))
	}
	if x := take(t, &h, id); len(x.Events) != MaxEvents || x.Lost != 5 {
		t.Errorf("%d events, %d lost", len(x.Events), x.Lost)
	}
	long := nl.TraceEvent{Type: nl.TraceCDC, Data: make([]byte, 8192)}
	for range MaxBytes/8192 + 5 {
		h.Add(long)
	}
	if x := take(t, &h, id); len(x.Events) != MaxBytes/8192 || x.Lost != 5 {
		t.Errorf("%d long events, %d lost", len(x.Events), x.Lost)
	}
	for range MaxTraces - 1 {
		begin(t, &h, nl.TraceCLC, 0)
	}
	if _, err := h.Trace(t.Context(), nl.TraceRequest{Types: nl.TraceCLC}, nil); !errors.Is(err, syscall.EUSERS) {
		t.Errorf("one trace too many: %v", err)
	}
	for _, r := range []nl.TraceRequest{{}, {Types: 1 << 7}, {ID: 99}, {ID: 99, End: true}, {End: true}} {
		if _, err := h.Trace(t.Context(), r, nil); !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOENT) {
			t.Errorf("%+v: %v", r, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.Trace(ctx, nl.TraceRequest{ID: id}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
}

// TestConcurrent adds events while traces begin and end.
func TestConcurrent(t *testing.T) {
	var h Hub
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					fill(&h)
				}
			}
		})
	}
	for range 50 {
		id := begin(t, &h, nl.TraceRoCE|nl.TraceCLC, 0)
		if x := take(t, &h, id); len(x.Events) == 0 {
			t.Error("no events")
		}
		if _, err := h.Trace(t.Context(), nl.TraceRequest{ID: id, End: true}, nil); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
}

// BenchmarkOff measures what a stack pays for each message while nobody traces it.
func BenchmarkOff(b *testing.B) {
	var h Hub
	m := message(1, 0xfe)
	b.ReportAllocs()
	for b.Loop() {
		if h.On() {
			h.Message(m)
		}
		if see := h.Packets().Load(); see != nil {
			b.Fatal("open")
		}
	}
}
