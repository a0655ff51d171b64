// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"smcr/internal/testing/adversary"
	"smcr/internal/testing/netnstest"
	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"
	"smcr/userstack"
	"smcr/userstack/wire"
)

// attack is a kind of flood. A new one is a line of attacks.
type attack struct {
	name string
	// run attacks until ctx is done, at full speed, and counts how often in times. The
	// error says that it could not attack.
	run func(ctx context.Context, f *floodBed, times *atomic.Int64) error
	// soak says that it is also a fault of long runs.
	soak bool
}

// attacks are the floods: of a host on the LAN, of a peer within its link group, and of a
// user.
var attacks = []attack{
	{"nothing", nothing, false},
	{"host: frames that nobody takes", frames, false},
	{"host: SYNs with the option, never answered", synsUnanswered, false},
	{"host: SYNs with the option, reset", synsReset, false},
	{"host: SYN-ACKs with the option", synacks, false},
	{"host: connects closed at once", connects, true},
	{"host: connects, and no CLC message", silent, false},
	{"host: connects from 200 addresses, and no CLC message", silentOfMany, false},
	{"host: connects, and no CLC message that is one", noise, false},
	{"host: PROPOSALs never finished", proposals, true},
	{"host: PROPOSALs from 200 addresses", proposalsOfMany, false},
	{"host: first contacts of new peer IDs", firstContacts, true},
	{"host: forged RoCE packets", forgedRoCE, true},
	{"host: RoCE packets to any queue pair", anyQueuePair, false},
	{"peer: LLC messages", llcMessages, true},
	{"peer: CDC messages", cdcMessages, true},
	{"user: control-socket requests", userFlood("requests"), false},
	{"user: connections that nobody answers", userFlood("connections"), false},
	{"user: everything of the stack's sockets", userFlood("all"), false},
}

// userFlood returns the attack of a user with the hostile program.
func userFlood(kind string) func(context.Context, *floodBed, *atomic.Int64) error {
	return func(ctx context.Context, f *floodBed, times *atomic.Int64) error { return f.user(ctx, kind, times) }
}

// lastTimes returns the last number that the hostile program has printed behind "times",
// or 1.
func lastTimes(log string) int64 {
	n := int64(1)
	if i := strings.LastIndex(log, "times "); i >= 0 {
		_, _ = fmt.Sscanf(log[i:], "times %d", &n)
	}
	return n
}

// attackers is how many goroutines of the hostile host attack at the same time.
const attackers = 4

// repeat runs attack in several goroutines until ctx is done, as often as the load says. It returns an error if none
// of them ever succeeds.
func (f *floodBed) repeat(ctx context.Context, times *atomic.Int64, attack func() (int, error)) error {
	var wg sync.WaitGroup
	var last atomic.Pointer[error]
	began, before := time.Now(), times.Load()
	for range attackers {
		wg.Go(func() {
			for ctx.Err() == nil {
				n, err := attack()
				sum := times.Add(int64(n)) - before
				if f.load.rate > 0 {
					time.Sleep(time.Until(began.Add(time.Duration(float64(sum) / float64(f.load.rate) * float64(time.Second)))))
				}
				if err != nil && ctx.Err() == nil {
					last.Store(&err)
					time.Sleep(time.Millisecond) // the victim has refused
				}
			}
		})
	}
	wg.Wait()
	if err := last.Load(); err != nil && times.Load() == 0 {
		return *err
	}
	return nil
}

// target returns the server of one of the victims.
func (f *floodBed) target() netip.AddrPort {
	h := []*netnstest.Host{f.a, f.b}[rand.IntN(2)]
	return netip.MustParseAddrPort(h.Addr() + serverPort)
}

// perDial is how many connections the hostile host makes in a row.
const perDial = 20

func connects(ctx context.Context, f *floodBed, times *atomic.Int64) error {
	return f.repeat(ctx, times, func() (int, error) {
		list, err := f.hostile.Dial(ctx, f.target(), perDial)
		for _, d := range list {
			_ = d.Close()
		}
		return len(list), err
	})
}

// ring keeps the newest connections open, and closes older ones.
type ring struct {
	mu   sync.Mutex
	held []func()
	next int
}

func (r *ring) add(end func()) {
	r.mu.Lock()
	old := r.held[r.next]
	r.held[r.next], r.next = end, (r.next+1)%len(r.held)
	r.mu.Unlock()
	if old != nil {
		old()
	}
}

func (r *ring) close() {
	for range r.held {
		r.add(nil)
	}
}

// newPeer returns what a hostile host says of itself with a peer ID that no other host has.
func newPeer(h *adversary.Host) adversary.Identity {
	id := h.Own
	binary.BigEndian.PutUint64(id.PeerID[:], rand.Uint64())
	return id
}

var ueid = sync.OnceValues(func() (wire.EID, error) { return wire.ParseEID(userstack.DefaultUEID) })

func proposals(ctx context.Context, f *floodBed, times *atomic.Int64) error {
	eid, err := ueid()
	if err != nil {
		return err
	}
	open := &ring{held: make([]func(), 4000)}
	defer open.close()
	return f.repeat(ctx, times, func() (int, error) {
		list, err := f.hostile.Dial(ctx, f.target(), perDial)
		for _, d := range list {
			open.add(func() { _ = d.Close() })
			id := newPeer(f.hostile)
			p, perr := id.Proposal(eid)
			err = errors.Join(err, perr, d.Send(p))
		}
		return len(list), err
	})
}

func firstContacts(ctx context.Context, f *floodBed, times *atomic.Int64) error {
	eid, err := ueid()
	if err != nil {
		return err
	}
	open := &ring{held: make([]func(), 200)}
	defer open.close()
	return f.repeat(ctx, times, func() (int, error) {
		p, err := f.hostile.Join(ctx, f.target(), eid, newPeer(f.hostile))
		if err != nil {
			return 0, err
		}
		open.add(func() { leave(p) })
		return 1, nil
	})
}

// leave ends a link group without a word to the victim.
func leave(p *adversary.Peer) {
	p.QP.Close()
	_ = p.Close()
}

func forgedRoCE(ctx context.Context, f *floodBed, times *atomic.Int64) error {
	forger, err := adversary.NewForger(f.hostile.Host)
	if err != nil {
		return err
	}
	defer forger.Close()
	end, err := wire.AppendLLC(nil, wire.LLCV2Little, wire.DeleteLink{All: true, Reason: wire.DeleteLinkOperator})
	if err != nil {
		return err
	}
	// Of each victim, an honest request tells what it expects, and an honest answer what it has
	// sent: each direction has PSNs of its own.
	hosts := []*netnstest.Host{f.a, f.b}
	var requests, answers []adversary.Seen
	for _, h := range hosts {
		for _, list := range []*[]adversary.Seen{&requests, &answers} {
			s, err := adversary.Tap(ctx, h, startTime, func(s *adversary.Seen) bool {
				return s.To.Addr() == h.Links[0].IPv4 && (s.BTH.Opcode() == header.Acknowledge) == (list == &answers)
			})
			if err != nil {
				return err
			}
			*list = append(*list, s)
		}
	}
	return f.repeat(ctx, times, func() (int, error) {
		for i := range 100 {
			s, pkt := &requests[i%2], adversary.Message(end)
			if i%4 > 1 {
				s, pkt = &answers[i%2], adversary.Packet{Op: header.Acknowledge, AETH: &adversary.Answer{Syndrome: header.NAKRemoteAccess}}
			}
			// Far behind the PSN of the victim: an exact hit would be luck.
			pkt.DestQP, pkt.PSN = s.BTH.DestQP(), (s.BTH.PSN()-1000-rand.Uint32N(1<<20))&header.PSNMask
			if err := forger.RoCE(s.From, hosts[i%2], &pkt); err != nil {
				return i, err
			}
		}
		return 100, nil
	})
}

// inGroup repeats an attack of a peer within its link group, which it makes again when the
// victim has ended it.
func inGroup(ctx context.Context, f *floodBed, times *atomic.Int64, attack func(p *adversary.Peer) (int, error)) error {
	eid, err := ueid()
	if err != nil {
		return err
	}
	return f.repeat(ctx, times, func() (int, error) {
		p, err := f.hostile.Join(ctx, f.target(), eid, newPeer(f.hostile))
		if err != nil {
			return 0, err
		}
		defer leave(p)
		for sum := 0; ; {
			n, err := attack(p)
			if sum += n; err != nil || ctx.Err() != nil {
				return sum, err
			}
		}
	})
}

// perSend is how many messages a peer sends before it looks whether the attack is over.
const perSend = 200

func llcMessages(ctx context.Context, f *floodBed, times *atomic.Int64) error {
	return inGroup(ctx, f, times, func(p *adversary.Peer) (int, error) {
		msgs := make([]wire.LLC, perSend)
		for i := range msgs {
			r := rand.Uint32()
			msgs[i] = []wire.LLC{
				wire.TestLink{UserData: [16]byte{byte(r)}},
				wire.TestLink{Reply: true, UserData: [16]byte{byte(r)}},
				wire.AddLink{QPN: smc.QPN(r & header.PSNMask), LinkNum: byte(r), MTU: 3},
				wire.DeleteLink{LinkNum: byte(100 + r%100), Reason: wire.DeleteLinkOperator},
				wire.ConfirmRKey{This: smc.RToken{RKey: smc.RKey(r), Addr: uint64(r) << 20}},
				wire.DeleteRKeyV2{RKeys: []smc.RKey{smc.RKey(r)}},
			}[r%6]
		}
		return perSend, p.LLC(msgs...)
	})
}

func cdcMessages(ctx context.Context, f *floodBed, times *atomic.Int64) error {
	return inGroup(ctx, f, times, func(p *adversary.Peer) (int, error) {
		pkts := make([]adversary.Packet, perSend)
		for i := range pkts {
			r := rand.Uint32()
			pkts[i] = adversary.CDC(wire.CDC{Seq: uint16(r), Token: r}) // of no connection
		}
		return perSend, p.QP.Send(pkts...)
	})
}
