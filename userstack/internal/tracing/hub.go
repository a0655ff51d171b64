// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"smcr/nl"
	"smcr/rdmaverbs"
	"smcr/smc"
)

// Limits of traces.
const (
	// MaxTraces is the largest number of traces at a time.
	MaxTraces = 4
	// MaxEvents is the largest number of events that wait for one trace.
	MaxEvents = 8192
	// MaxBytes is the largest size of the data of these events, in bytes.
	MaxBytes = 2 << 20
	// pollWait is how long a request waits for events.
	pollWait = time.Second
	// lifetime is how long a trace exists without a request.
	lifetime = 10 * time.Second
)

// allTypes are the types that there are.
const allTypes = nl.TraceCLC | nl.TraceLLC | nl.TraceCDC | nl.TraceRoCE

// A Hub has the traces of one stack. The zero value is ready for use. A nil Hub has none.
type Hub struct {
	packets rdmaverbs.PacketTrace
	on      atomic.Bool // there is a trace

	mu     sync.Mutex
	last   uint32 // number of the newest trace
	traces map[uint32]*trace
}

// A trace has the events that one owner has not taken yet.
type trace struct {
	types  nl.TraceTypes
	group  nl.LinkGroupID
	events []nl.TraceEvent
	bytes  int
	lost   uint64
	asked  time.Time     // when the last request began or ended
	wake   chan struct{} // buffered: there are events
}

// On reports whether there is a trace, so that Add must be called.
func (h *Hub) On() bool { return h != nil && h.on.Load() }

// Packets returns the trace for the queue pairs of the stack. Their tag is the link group.
func (h *Hub) Packets() *rdmaverbs.PacketTrace {
	if h == nil {
		return nil
	}
	return &h.packets
}

// Add adds an event to the traces that want it. It copies the data. If Time is not set, it is
// now.
func (h *Hub) Add(e nl.TraceEvent) {
	now := time.Now()
	if e.Time.IsZero() {
		e.Time = now
	}
	e.Data = append([]byte(nil), e.Data...) // traces share the copy, which nobody changes
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, t := range h.traces {
		if now.Sub(t.asked) > lifetime {
			h.end(id)
			continue
		}
		t.add(&e)
	}
}

// add adds an event if the trace wants it.
func (t *trace) add(e *nl.TraceEvent) {
	types := t.types
	if types&nl.TraceRoCE != 0 {
		types &^= nl.TraceLLC | nl.TraceCDC // they are in the packets
	}
	switch {
	case types&e.Type == 0:
		return
	case t.group != 0 && (t.group^e.Group)>>8 != 0:
		return
	case len(t.events) >= MaxEvents || t.bytes+len(e.Data) > MaxBytes:
		t.lost++
	default:
		t.events = append(t.events, *e)
		t.bytes += len(e.Data)
	}
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// end removes a trace. h.mu is held.
func (h *Hub) end(id uint32) {
	delete(h.traces, id)
	h.set()
}

// set opens what the traces need, and closes the rest. h.mu is held.
func (h *Hub) set() {
	packets := false
	for _, t := range h.traces {
		packets = packets || t.types&nl.TraceRoCE != 0
	}
	h.on.Store(len(h.traces) > 0)
	if packets {
		h.packets.Open(h.packet)
	} else {
		h.packets.Close()
	}
}

// packet adds the event of a packet.
func (h *Hub) packet(p *rdmaverbs.TracedPacket) {
	e := nl.TraceEvent{
		Type: nl.TraceRoCE, Out: p.Out, Group: nl.LinkGroupID(p.Tag), RoCE: uint8(p.Type),
		Local: gidEnd(p.Local), Remote: gidEnd(p.Remote), QPN: p.LocalQPN, PeerQPN: p.PeerQPN,
		Length: uint32(len(p.Header) + p.PayloadLen + p.PadLen),
		Data:   make([]byte, 0, len(p.Header)+len(p.Message[0])+len(p.Message[1])+3),
	}
	e.Data = append(append(append(e.Data, p.Header...), p.Message[0]...), p.Message[1]...)
	if len(e.Data) == len(p.Header)+p.PayloadLen { // all of the packet
		e.Data = append(e.Data, make([]byte, p.PadLen)...)
	}
	h.Add(e)
}

// gidEnd returns the address of a GID in the form of an event.
func gidEnd(g smc.GID) netip.AddrPort { return netip.AddrPortFrom(g.Addr(), 0) }

// Message adds the event of an LLC or CDC message on a link.
func (h *Hub) Message(m Message) {
	typ := nl.TraceLLC
	if len(m.Bytes) > 0 && m.Bytes[0]>>6 == 0b11 { // RFC 7609, appendix A.4
		typ = nl.TraceCDC
	}
	h.Add(nl.TraceEvent{
		Type: typ, Out: m.Out, Group: m.Group, RoCE: m.RoCE, Local: gidEnd(m.Local), Remote: gidEnd(m.Remote),
		QPN: uint32(m.QPN), PeerQPN: uint32(m.PeerQPN), Length: uint32(len(m.Bytes)), Data: m.Bytes,
	})
}

// A Message is an LLC or CDC message on a link.
type Message struct {
	Out           bool // sent, not received
	Group         nl.LinkGroupID
	RoCE          uint8 // version
	Local, Remote smc.GID
	QPN, PeerQPN  smc.QPN
	Bytes         []byte
}

// Trace answers a request. See [nl.Control]. conns returns the connections when a trace
// begins; it is called without a lock.
func (h *Hub) Trace(ctx context.Context, r nl.TraceRequest, conns func() []nl.TraceConn) (nl.Trace, error) {
	switch {
	case r.ID == 0 && !r.End:
		id, err := h.begin(r)
		if err != nil {
			return nl.Trace{}, err
		}
		return nl.Trace{ID: id, Conns: conns()}, nil
	case r.End:
		return h.take(r.ID, true)
	}
	h.mu.Lock()
	t := h.traces[r.ID]
	if t != nil {
		t.asked = time.Now()
	}
	h.mu.Unlock()
	if t != nil {
		timer := time.NewTimer(pollWait)
		defer timer.Stop()
		select {
		case <-t.wake:
		case <-timer.C:
		case <-ctx.Done():
			return nl.Trace{}, ctx.Err()
		}
	}
	return h.take(r.ID, false)
}

func (h *Hub) begin(r nl.TraceRequest) (id uint32, err error) {
	if r.Types == 0 || r.Types&^allTypes != 0 {
		return 0, fmt.Errorf("types %#x: %w", uint8(r.Types), syscall.EINVAL)
	}
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, t := range h.traces {
		if now.Sub(t.asked) > lifetime {
			h.end(id)
		}
	}
	if len(h.traces) >= MaxTraces {
		return 0, fmt.Errorf("there are %d traces already, as many as a stack has at most: %w", MaxTraces, syscall.EUSERS)
	}
	if h.traces == nil {
		h.traces = make(map[uint32]*trace)
	}
	h.last++
	if h.last == 0 {
		h.last++
	}
	h.traces[h.last] = &trace{types: r.Types, group: r.Group, asked: now, wake: make(chan struct{}, 1)}
	h.set()
	return h.last, nil
}

// take returns the events of a trace, and may end the trace.
func (h *Hub) take(id uint32, end bool) (nl.Trace, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.traces[id]
	if t == nil {
		return nl.Trace{}, fmt.Errorf("trace %d has ended: %w", id, syscall.ENOENT)
	}
	out := nl.Trace{ID: id, Lost: t.lost, Events: t.events}
	t.events, t.bytes, t.lost, t.asked = nil, 0, 0, time.Now()
	if end {
		h.end(id)
	}
	return out, nil
}
