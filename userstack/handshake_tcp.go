// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"fmt"
	"io"
	"time"

	"smcr/nl"
	"smcr/userstack/rendezvous"
	"smcr/userstack/wire"
)

// read starts to read from TCP if the machine needs something, and returns the channel of the
// result. It returns nil if nothing is read.
func (h *handshake) read() <-chan readResult {
	if !h.reader.pending {
		switch {
		case h.look.on:
			h.reader.request(readRequest{look: true, seen: h.look.seen})
		case h.m.Want() > 0:
			h.reader.request(readRequest{})
		default:
			return nil
		}
	}
	return h.reader.got
}

// wasRead converts the result of a read to an event.
func (h *handshake) wasRead(res readResult) rendezvous.Event {
	h.reader.finish(res)
	switch {
	case res.look && res.err == nil:
		h.look.seen = len(res.b)
		h.look.on = h.look.seen < wire.HeaderLen
		return rendezvous.FirstBytes{Bytes: res.b}
	case !res.look && len(res.b) > 0:
		h.traceCLC(res.b, false)
		return rendezvous.Received{Bytes: res.b} // an error shows at the next read
	}
	h.look.on = false
	if errors.Is(res.err, io.EOF) {
		return rendezvous.EOF{}
	}
	return rendezvous.ReadFailed{Err: res.err}
}

func (h *handshake) stopReading() rendezvous.Event {
	h.drained(h.reader.stop())
	if h.m.State() == rendezvous.Draining { // what follows a DECLINE is the program's
		h.drained(h.reader.rest())
	}
	return rendezvous.ReadStopped{}
}

func (h *handshake) drained(b []byte) {
	if len(b) > 0 {
		h.traceCLC(b, false)
		h.m.Handle(time.Now(), rendezvous.Received{Bytes: b})
	}
}

// send writes a message.
func (h *handshake) send(m wire.CLC) rendezvous.Event {
	b, err := h.unsent, error(nil)
	if h.unsent = nil; b == nil {
		if b, err = m.AppendBinary(nil); err == nil {
			h.traceCLC(b, true)
		}
	}
	switch {
	case err != nil:
	case h.mayWait:
		err = h.writes.send(b, time.Now().Add(rendezvous.MessageWait))
	default:
		if b, err = h.writes.try(b); err == nil && len(b) > 0 {
			h.unsent = b
			return later
		}
	}
	if err != nil {
		if ev := h.interrupted(); ev != nil {
			return ev
		}
		return rendezvous.SendFailed{Err: fmt.Errorf("send %s: %w", m.CLCType(), err)}
	}
	h.path.sent = time.Now()
	return rendezvous.Sent{}
}

// traceCLC shows a message to those who trace the stack.
func (h *handshake) traceCLC(b []byte, out bool) {
	if t := &h.s.trace; t.On() {
		t.Add(nl.TraceEvent{
			Type: nl.TraceCLC, Out: out, Local: addrPort(h.tcp.LocalAddr()), Remote: addrPort(h.tcp.RemoteAddr()),
			Length: uint32(len(b)), Data: b,
		})
	}
}

// tcpState finds out what the peer has acknowledged and sent after a DECLINE.
func (h *handshake) tcpState() rendezvous.Event {
	unacked, first := probeTCP(h.tcp)
	return rendezvous.TCPState{Unacked: unacked, First: first}
}
