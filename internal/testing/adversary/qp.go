// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"smcr/rdmaverbs/softroce/header"
)

// ErrRefused means that the victim answered a packet with a NAK, by which its queue pair
// is in the error state.
var ErrRefused = errors.New("adversary: the victim refused the packet")

// ErrSilent means that the victim did not acknowledge a packet.
var ErrSilent = errors.New("adversary: the victim does not acknowledge")

const (
	// window is how many packets [QP.Send] has outstanding at most.
	window = 32
	// resend is how long it waits for an acknowledgement before it sends again.
	resend = 200 * time.Millisecond
	// resends is how often it does so without progress.
	resends = 25
	// pause is how long it waits for a peer that is not ready.
	pause = 5 * time.Millisecond
)

// QP is a queue pair of the reliable connection service. It acknowledges what arrives in
// order, and keeps it. It is safe for concurrent use.
type QP struct {
	// Num is the queue pair number, 24 bits.
	Num uint32
	// Messages has the payloads of the SENDs that arrived. Those that find it full are
	// dropped. It is closed with the port.
	Messages chan []byte

	port *Port

	sending sync.Mutex // held by Send: one batch after the other

	mu      sync.Mutex
	changed sync.Cond // on mu: acked, refused or closed
	peer    netip.Addr
	peerQP  uint32
	send    uint32 // PSN of the next packet
	acked   uint32 // all PSNs before it are acknowledged
	expect  uint32 // PSN of the peer's next packet
	msn     uint32
	again   bool // packets are to be sent again
	// notReady: the peer has no receive request for the oldest packet.
	notReady bool
	refused  header.Syndrome
	mem      []byte // where the peer's WRITEs go, or nil
	base     uint64 // address of mem
	silent   bool   // nothing is acknowledged
	closed   bool
}

// NewQP makes a queue pair, whose first packet will have the PSN first.
func (p *Port) NewQP(first uint32) *QP {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next++
	q := &QP{Num: p.next, Messages: make(chan []byte, 4096), port: p, send: first, acked: first}
	q.changed.L = &q.mu
	p.qps[q.Num] = q
	return q
}

// Connect connects it to the queue pair of a victim whose first packet has the PSN first.
func (q *QP) Connect(peer netip.Addr, qpn, first uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.peer, q.peerQP, q.expect = peer, qpn, first
}

// Silence has the queue pair acknowledge nothing any more.
func (q *QP) Silence() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.silent = true
}

// PSN returns the PSN of the next packet.
func (q *QP) PSN() uint32 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.send
}

// Register has the peer's writes to the memory at an address go to mem. What is beyond it
// is dropped.
func (q *QP) Register(base uint64, mem []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.base, q.mem = base, mem
}

// Load copies what the peer has written, from an offset of the registered memory.
func (q *QP) Load(b []byte, off int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	copy(b, q.mem[off:])
}

// distance returns how far PSN a is behind PSN b, in [-2^23, 2^23).
func distance(a, b uint32) int {
	d := int((a - b) & header.PSNMask)
	if d >= 1<<23 {
		d -= 1 << 24
	}
	return d
}

// handle takes a packet of the peer.
func (q *QP) handle(from netip.Addr, t *header.Transport) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if from != q.peer || q.closed {
		return
	}
	if t.BTH.Opcode() == header.Acknowledge {
		q.answered(t)
		return
	}
	if t.BTH.Opcode().IsResponse() || q.silent {
		return
	}
	switch d := distance(t.BTH.PSN(), q.expect); {
	case d > 0:
		q.answer(header.NAKSequence, q.expect)
		return
	case d == 0:
		q.expect = (q.expect + 1) & header.PSNMask
		q.msn = (q.msn + 1) & header.PSNMask
		switch t.BTH.Opcode() {
		case header.SendOnly:
			select {
			case q.Messages <- slices.Clone(t.Payload):
			default:
			}
		default:
			// The victim sends each packet as a WRITE of its own.
			if h := t.RETH; h != nil && h.VA() >= q.base && h.VA()-q.base < uint64(len(q.mem)) {
				copy(q.mem[h.VA()-q.base:], t.Payload)
			}
		}
	}
	q.answer(header.ACKNoCredits, (q.expect-1)&header.PSNMask)
}

// answered takes an acknowledgement.
func (q *QP) answered(t *header.Transport) {
	s, psn := t.AETH.Syndrome(), t.BTH.PSN()
	next := (psn + 1) & header.PSNMask
	switch {
	case s.IsACK():
	case s == header.NAKSequence, s.IsRNR():
		next, q.again, q.notReady = psn, true, s.IsRNR()
	default:
		next, q.refused = psn, s
	}
	if distance(next, q.acked) > 0 && distance(next, q.send) <= 0 {
		q.acked = next
	}
	q.changed.Broadcast()
}

// answer acknowledges up to a PSN.
func (q *QP) answer(s header.Syndrome, psn uint32) {
	_ = q.port.Send(q.peer, &Packet{Op: header.Acknowledge, PSN: psn, DestQP: q.peerQP, AETH: &Answer{s, q.msn}})
}

// Emit sends one packet as it is, without its number in the order of this queue pair, and
// waits for nothing. A DestQP of 0 becomes that of the peer.
func (q *QP) Emit(pkt Packet) error {
	q.mu.Lock()
	peer := q.peer
	if pkt.DestQP == 0 {
		pkt.DestQP = q.peerQP
	}
	q.mu.Unlock()
	return q.port.Send(peer, &pkt)
}

// Send sends packets in order, again where they are lost, and waits until all are
// acknowledged. It sets their PSN and destination. The error is [ErrRefused] or
// [ErrSilent].
func (q *QP) Send(pkts ...Packet) error {
	q.sending.Lock()
	defer q.sending.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	base := q.send
	end := (base + uint32(len(pkts))) & header.PSNMask
	next := base
	progress, tries := q.acked, 0
	for {
		switch {
		case q.closed:
			return errors.New("adversary: the port is closed")
		case q.refused != 0:
			return fmt.Errorf("%w: %s", ErrRefused, q.refused)
		case q.acked == end:
			return nil
		}
		if q.again {
			q.again, next = false, q.acked
		}
		if distance(next, q.acked) < 0 {
			next = q.acked
		}
		for next != end && distance(next, q.acked) < window {
			pkt := pkts[distance(next, base)]
			pkt.PSN, pkt.DestQP = next, q.peerQP
			if err := q.port.Send(q.peer, &pkt); err != nil {
				return err
			}
			next = (next + 1) & header.PSNMask
			if distance(next, q.send) > 0 {
				q.send = next
			}
		}
		late := time.AfterFunc(resend, func() {
			q.mu.Lock()
			q.again = true
			q.changed.Broadcast()
			q.mu.Unlock()
		})
		q.changed.Wait()
		late.Stop()
		switch {
		case q.acked != progress:
			progress, tries = q.acked, 0
			continue
		case tries == resends:
			return fmt.Errorf("%w: PSN %#x", ErrSilent, q.acked)
		}
		tries++
		if q.notReady {
			q.notReady = false
			q.mu.Unlock()
			time.Sleep(pause)
			q.mu.Lock()
		}
	}
}

// Close ends the queue pair: its port does not know it any more, and acknowledges nothing
// for it.
func (q *QP) Close() {
	q.port.mu.Lock()
	delete(q.port.qps, q.Num)
	q.port.mu.Unlock()
	q.close()
}

func (q *QP) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return
	}
	q.closed = true
	close(q.Messages)
	q.changed.Broadcast()
}
