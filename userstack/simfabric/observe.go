// SPDX-License-Identifier: Apache-2.0

package simfabric

import (
	"slices"
	"time"

	"smcr/rdmaverbs"
)

// EventKind is the kind of an [Event].
type EventKind uint8

// The kinds of events.
const (
	// EventSend: a SEND has arrived. Data is the message.
	EventSend EventKind = iota + 1
	// EventLost: a SEND was acknowledged, but [Config.Alter] did not deliver it. Data is
	// the message.
	EventLost
	// EventWrite: an RDMA WRITE was placed. Data is the content of the memory before the
	// write, Mem the memory itself, with the new bytes.
	EventWrite
	// EventPartial is an EventWrite of which only the first packets arrived, because the
	// path failed.
	EventPartial
	// EventRefused: a WRITE had no permission. The queue pair at To fails.
	EventRefused
	// EventFailed: the queue pair at From has failed. Note is the reason.
	EventFailed
	// EventTCP: bytes have arrived on a TCP connection, or FIN or RST, which Note names.
	EventTCP
	// EventChange: the state of a port, device, host or LAN has changed. Note says how.
	EventChange
)

// A Place is where an event happens.
type Place struct {
	Host, NetDev string
	// QPN is the number of the queue pair, or the port of a TCP connection.
	QPN uint32
}

// An Event is something that happened in the world.
type Event struct {
	Kind     EventKind
	From, To Place
	Data     []byte
	Mem      []byte
	RKey     uint32
	Addr     uint64
	Note     string
}

// where returns the place of q.
func (q *qp) where() Place { return Place{q.n.host.name, q.n.Name, q.qpn} }

// observe reports e. mu is held.
func (w *World) observe(e *Event) {
	if w.cfg.Observe != nil {
		w.cfg.Observe(e)
	}
}

// changed reports a change. mu is held.
func (w *World) changed(host, netdev, note string) {
	w.observe(&Event{Kind: EventChange, From: Place{Host: host, NetDev: netdev}, Note: note})
}

// After calls f on the goroutine of the world after the time d. No lock is held. f must
// not block.
func (w *World) After(d time.Duration, f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at(time.Now().Add(d), func(time.Time) { w.notify = append(w.notify, notice{f: f}) })
}

// QP describes a connected queue pair.
type QP struct {
	Place
	Peer Place // zero if the peer does not exist any more
}

// QPs lists the connected queue pairs by number.
func (w *World) QPs() []QP {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []QP
	for _, q := range w.qps {
		if q.state == rdmaverbs.QPSRTR || q.state == rdmaverbs.QPSRTS {
			e := QP{Place: q.where()}
			if p := q.peer(); p != nil {
				e.Peer = p.where()
			}
			out = append(out, e)
		}
	}
	slices.SortFunc(out, func(a, b QP) int { return int(a.QPN) - int(b.QPN) })
	return out
}

// MRs lists the memory regions that peers may write to, by address.
func (w *World) MRs() []MR {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []MR
	for _, m := range w.mrs {
		if m.access&rdmaverbs.AccessRemoteWrite != 0 {
			out = append(out, MR{Host: m.pd.dev.ports[0].host.name, RKey: m.key, Addr: m.addr, Len: len(m.buf)})
		}
	}
	slices.SortFunc(out, func(a, b MR) int {
		if a.Addr < b.Addr {
			return -1
		}
		return 1
	})
	return out
}

// MR describes a memory region that peers may write to. Addr is a virtual address, Len is
// in bytes.
type MR struct {
	Host string
	RKey uint32
	Addr uint64
	Len  int
}

// Inject makes the peer of queue pair qpn send msg to it, without the host of the peer.
// It returns false if this is not possible: there is no such connected queue pair, or it
// has no receive request.
func (w *World) Inject(qpn uint32, msg []byte) bool {
	w.mu.Lock()
	defer w.unlock()
	q := w.forged(qpn)
	if q == nil || len(q.rq) == 0 {
		return false
	}
	p := q.peer()
	w.observe(&Event{Kind: EventSend, From: p.where(), To: q.where(), Data: msg, Note: "forged"})
	if q.receive(msg) == rdmaverbs.StatusSuccess {
		q.deliver(rdmaverbs.WC{ID: q.rq[0].id, QPN: q.qpn, Op: rdmaverbs.WCRecv, Len: len(msg)})
		q.rq = q.rq[1:]
	}
	return true
}

// InjectWrite does the same with an RDMA WRITE of data. Without permission, the queue
// pair fails, as with a real write.
func (w *World) InjectWrite(qpn, rkey uint32, addr uint64, data []byte) bool {
	w.mu.Lock()
	defer w.unlock()
	q := w.forged(qpn)
	if q == nil {
		return false
	}
	e := Event{Kind: EventWrite, From: q.peer().where(), To: q.where(), RKey: rkey, Addr: addr, Note: "forged"}
	s := sendWQE{wr: rdmaverbs.SendWR{RKey: rkey, RemoteAddr: addr}, length: len(data)}
	to, ok := q.remote(&s, rdmaverbs.AccessRemoteWrite)
	if !ok {
		e.Kind = EventRefused
		w.observe(&e)
		q.fail("remote access error")
		return true
	}
	e.Data, e.Mem = slices.Clone(to), to
	copy(to, data)
	w.observe(&e)
	return true
}

// forged returns the queue pair that receives a forged request. mu is held.
func (w *World) forged(qpn uint32) *qp {
	q := w.qps[qpn]
	if q == nil || q.state != rdmaverbs.QPSRTR && q.state != rdmaverbs.QPSRTS || q.peer() == nil {
		return nil
	}
	return q
}

// receive stores a message in the oldest receive request.
func (q *qp) receive(msg []byte) rdmaverbs.WCStatus {
	r := &q.rq[0]
	switch {
	case len(msg) == 0:
	case r.bad || r.gone():
		return q.refuse(rdmaverbs.StatusLocProtErr)
	case len(msg) > r.sg.Len+r.more.Len:
		return q.refuse(rdmaverbs.StatusLocLenErr)
	default:
		r.put(msg)
	}
	return rdmaverbs.StatusSuccess
}

// broken returns the peer of q if the only reason why messages do not arrive is the path
// between them, which has failed since the time given. Otherwise it returns nil. mu is
// held.
func (q *qp) broken(since time.Time) *qp {
	n := q.n
	o := q.w.byGID(n, q.rtr.DGID)
	if o == nil || q.dev.gone || q.dev.closed {
		return nil
	}
	for _, c := range []struct {
		down bool
		at   time.Time
	}{
		{!n.up || n.gone, n.cut}, {!o.up || o.gone, o.cut}, {n.lan.down, n.lan.cut},
		{n.host.vanished, n.host.cut}, {o.host.vanished, o.host.cut},
	} {
		if c.down && c.at.Before(since) {
			return nil
		}
	}
	p := q.w.qps[q.rtr.DQPN]
	if p == nil || !p.connectedTo(q) {
		return nil
	}
	return p
}
