// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack"
	"smcr/userstack/rendezvous"
	"smcr/userstack/wire"
)

// lyingServer answers the PROPOSALs of A.
type lyingServer struct {
	*lab
	t *testing.T
	// B is what B says of itself, and of its end of the link of which A is the client.
	B    Identity
	link smc.QPN
	rmb  smc.RToken // of B, where the connection of A writes
}

// accept returns an ACCEPT in the name of B for its link with A, changed by edit.
func (s *lyingServer) accept(first bool, edit func(e *wire.Endpoint)) wire.CLC {
	q := QP{Num: uint32(s.link)}
	e := s.B.Endpoint(&q, s.rmb, 200, 0x5a5a5a5a)
	edit(&e)
	a := wire.AcceptV2{Endpoint: e, EID: eid}
	if first {
		a.FirstContact = &wire.FirstContactExt{Direct: true, OS: smc.OSLinux, Release: wire.ReleaseV21, MaxConns: 255, MaxLinks: 1}
	}
	return a
}

// answers are what it says in place of an honest ACCEPT.
var answers = []struct {
	name string
	say  func(s *lyingServer, d *Dialog) error
}{
	{"the link of B, with an RMB of nobody", func(s *lyingServer, d *Dialog) error {
		return d.Send(s.accept(false, func(e *wire.Endpoint) { e.RMB = ownRMB(9) }))
	}},
	{"the link of B, with the RMB of B at another address", func(s *lyingServer, d *Dialog) error {
		return d.Send(s.accept(false, func(e *wire.Endpoint) { e.RMB.Addr += 4096 }))
	}},
	{"queue pair 0", func(s *lyingServer, d *Dialog) error {
		return d.Send(s.accept(false, func(e *wire.Endpoint) { e.QPN = 0 }))
	}},
	{"queue pair 0 of a first contact", func(s *lyingServer, d *Dialog) error {
		return d.Send(s.accept(true, func(e *wire.Endpoint) { e.QPN = 0 }))
	}},
	{"the queue pair of B for a first contact", func(s *lyingServer, d *Dialog) error {
		return d.Send(s.accept(true, func(*wire.Endpoint) {}))
	}},
	{"an MTU that does not exist", func(s *lyingServer, d *Dialog) error {
		return d.Send(s.accept(true, func(e *wire.Endpoint) { e.MTU = 15 }))
	}},
	{"a link group that A does not have", func(s *lyingServer, d *Dialog) error {
		return d.Send(s.accept(false, func(e *wire.Endpoint) { e.PeerID[0] ^= 1 }))
	}},
	{"A must end its link group", func(s *lyingServer, d *Dialog) error {
		return d.Send(wire.Decline{PeerID: s.B.PeerID, Diagnosis: smc.DiagSync, OutOfSync: true})
	}},
	{"CONFIRM", func(s *lyingServer, d *Dialog) error { return d.Send(wire.Confirm{}) }},
	{"half an ACCEPT", func(s *lyingServer, d *Dialog) error {
		b, err := s.accept(true, func(*wire.Endpoint) {}).AppendBinary(nil)
		if err != nil {
			return err
		}
		return write(d, b[:60])
	}},
	{"nothing", func(*lyingServer, *Dialog) error { return nil }},
}

// TestLyingServer: a server to which A connects cannot harm A's link group with B,
// although A tells it its peer ID, and it names what belongs to B.
func TestLyingServer(t *testing.T) {
	l := newLab(t, userstack.Config{})
	s := lyingServer{lab: l, B: IdentityOf(l.B.Host, l.B.peerID(t, l.A))}
	for _, k := range l.A.links(t) {
		if k.Role == smc.Client {
			s.link = smc.QPN(k.PeerQPN)
		}
	}
	var err error
	if s.rmb.RKey, s.rmb.Addr, err = foreignWrite(l); err != nil {
		t.Fatal(err)
	}
	for i, a := range some(answers) {
		t.Run(a.name, func(t *testing.T) {
			s.t = t
			// After a lie, A does not announce SMC to the address for some time.
			addr := netip.AddrFrom4([4]byte{10, 77, 0, byte(100 + i)})
			l.must(l.C.Command(t.Context(), "ip", "address", "add", addr.String()+"/24", "dev", l.C.Links[0].Name).Run())
			ln, err := l.C.ListenAt(t.Context(), netip.AddrPortFrom(addr, 7000))
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			dialed := make(chan net.Conn, 1)
			go func() {
				defer close(dialed)
				_ = l.A.Do(func() error {
					c, err := l.A.stack.Dial("tcp4", ln.Addr().String())
					if err == nil {
						dialed <- c
					}
					return nil // it may be reset
				})
			}()
			tcp, err := ln.AcceptTCP()
			if err != nil {
				t.Fatal(err)
			}
			d := &Dialog{Conn: tcp}
			if _, err = ReceiveAs[wire.Proposal](d, answerTime); err == nil {
				err = a.say(&s, d)
			}
			if err != nil {
				t.Error(err)
			}
			var c net.Conn
			select {
			case c = <-dialed:
			case <-time.After(rendezvous.MessageWait + settleTime):
				t.Fatal("A waits")
			}
			if c != nil {
				if userstack.IsSMC(c) {
					t.Error("A has an SMC-R connection with the attacker")
				}
				c.Close()
			}
			l.must(d.Close())
			l.unharmed(t)
		})
	}
	l.finish()
}
