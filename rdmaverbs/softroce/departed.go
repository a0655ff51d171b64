// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"slices"
	"time"

	"smcr/rdmaverbs/softroce/header"
)

// A departed queue pair was closed, and its peer may not know. The InfiniBand
// specification has what comes for it dropped, and the peer find out by its
// retries. But Linux's soft-RoCE retries for ever where the retry count is 7, as
// that of SMC is, and Linux's SMC waits as long for what it sent over a link
// before it deletes the link, with all that waits behind it: connections that
// are opened or closed. So the peer is told, by a NAK for a remote operational
// error:
//
//	Event                           | Who is told
//	--------------------------------+------------------------------------------
//	closed while the netdev is down | the peer, through another netdev of the
//	                                | host if one reaches it, some times over
//	a request comes                 | its sender
//
// A NAK confirms what comes before its PSN. It is too late for that, even where
// it is true: SMC in Linux that has moved a connection to another link and hears
// of success on the old one takes its send buffer for free, and repeats from it
// what it overwrites. So the NAK names the first PSN that the peer does not know
// the fate of: that of its first request, as retries begin there, or, without a
// request, each that may be it, upwards from one that it surely knows of, since
// our last ACKs may be lost. NAKs for PSNs that it knows of mean nothing to it.
type departed struct {
	qpn  uint32
	dqpn uint32
	path path
	told psn // all before it were confirmed
	msn  uint32

	again int           // goodbyes that were set, used by the timers alone
	pause time.Duration // before the last of them
}

// maxDeparted is how many queue pairs of a device are remembered.
const maxDeparted = 256

// A peer that cannot reach us is told again, goodbyes times, the first time
// after firstGoodbye and then after five times as long each. It may have had
// nothing under way before, and goes on to send until the host above has told it
// of the failure.
//
// maxDoubt is how many packets it may have outstanding: 128 with Linux.
const (
	maxDoubt     = 128
	goodbyes     = 4
	firstGoodbye = 20 * time.Millisecond
)

// depart remembers q, which was just closed, if it ever had a peer. d.mu is held.
func (d *Device) depart(q *qp) *departed {
	if q.path.dgid.IsZero() || d.closed {
		return nil
	}
	p := &departed{qpn: q.ep.qpn, dqpn: q.ep.dqpn, path: q.path, told: q.ep.rsp.told, msn: q.ep.rsp.msn}
	d.departed = append(d.departed, p)
	if len(d.departed) > maxDeparted {
		d.departed = slices.Delete(d.departed, 0, 1)
	}
	return p
}

// late takes a packet for a queue pair that is not known, and returns the
// departed one that has to answer it, if any, with the PSN to refuse.
func (d *Device) late(in *inbound, bth header.BTH) (*departed, psn) {
	const serviceBits = 0xe0
	if bth.Opcode()&serviceBits != 0 || bth.Opcode().IsResponse() {
		return nil, 0
	}
	qpn := bth.DestQP()
	d.mu.RLock()
	i := slices.IndexFunc(d.departed, func(p *departed) bool { return p.qpn == qpn })
	var p *departed
	if i >= 0 {
		p = d.departed[i]
	}
	d.mu.RUnlock()
	if p == nil || in.typ != p.path.typ || in.sgid != p.path.dgid || in.dgid != p.path.sgid {
		return nil, 0
	}
	at := psn(bth.PSN())
	if at.sub(p.told) > 0 {
		at = p.told
	}
	return p, at
}

// refuse tells the peer of a departed queue pair that nothing comes of its
// requests from PSN from on, by a NAK for each PSN from there to last.
func (d *Device) refuse(p *departed, from, last psn) {
	d.mu.Lock()
	up := !d.unreachable()
	d.past.nakSent++
	d.mu.Unlock()
	aside, _ := d.wire.(interface{ sendAside(*path, []packet) })
	b := batches.Get().(*batch)
	defer batches.Put(b)
	for at := from; at.sub(last) <= 0; {
		for ; at.sub(last) <= 0 && !b.full(); at = at.add(1) {
			out := b.next(header.Acknowledge.HeaderLen())
			header.BTH(out.hdr).Encode(&header.BTHFields{
				Opcode: header.Acknowledge, MigReq: true, PKey: header.DefaultPKey, DestQP: p.dqpn, PSN: uint32(at),
			})
			header.AETH(out.hdr[header.BTHLen:]).Encode(header.NAKRemoteOp, p.msn)
		}
		var err error
		if up {
			err = d.wire.send(&p.path, b.pkts)
		} else if aside != nil {
			aside.sendAside(&p.path, b.pkts)
		}
		b.reset()
		if err != nil {
			d.wireFailed(err)
			return
		}
	}
}

// goodbye tells the peer of q, which is closed, once more, and says when to do
// so again, if at all. The timers call it.
func (q *qp) goodbye() {
	p := q.bye
	q.dev.refuse(p, p.told.add(-maxDoubt), p.told)
	if p.again < goodbyes {
		p.pause = max(firstGoodbye, 5*p.pause)
		p.again++
		q.dev.timers.set(q, q.dev.now().add(p.pause))
	}
}

// unreachable says that peers cannot reach the port. d.mu is held.
func (d *Device) unreachable() bool { return !d.info.Up || d.gone }
