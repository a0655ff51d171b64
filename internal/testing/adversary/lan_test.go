// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"
	"smcr/userstack"
	"smcr/userstack/rendezvous"
	"smcr/userstack/wire"
)

// versions are the configurations of the victims: with SMC version 2, and without.
var versions = map[string]userstack.Config{"version 2": {}, "version 1": {NoVersion2: true}}

// eidsOf returns the enterprise IDs that an attacker offers to such victims.
func eidsOf(cfg userstack.Config) []wire.EID {
	if cfg.NoVersion2 {
		return nil
	}
	return []wire.EID{eid}
}

// impostor is a host that speaks CLC with B in the name of A.
type impostor struct {
	*lab
	t    *testing.T
	A    Identity // what A says of itself
	eids []wire.EID
	qpn  smc.QPN // A's end of the link of which B is the server
}

// propose sends a PROPOSAL of A, and returns the ACCEPT. The ACCEPT must not be one of the
// link group of A: it would tell the impostor the queue pair, the RMB and an alert token.
func (i *impostor) propose() (d *Dialog, acc wire.Endpoint, err error) {
	list, err := i.C.Dial(i.t.Context(), i.B.address(), 1)
	if err != nil {
		return nil, acc, err
	}
	d = list[0]
	p, err := i.A.Proposal(i.eids...)
	if err == nil {
		err = d.Send(p)
	}
	if err != nil {
		return d, acc, err
	}
	m, err := d.Receive(answerTime)
	if err != nil {
		return d, acc, err
	}
	first := false
	switch m := m.(type) {
	case wire.Accept:
		acc, first = m.Endpoint, m.FirstContact
	case wire.AcceptV2:
		acc, first = m.Endpoint, m.FirstContact != nil
	default:
		return d, acc, fmt.Errorf("B answers %+v", m)
	}
	if !first {
		i.t.Errorf("B lets the impostor into the link group of A: queue pair %s, RMB %+v", acc.QPN, acc.RMB)
	}
	return d, acc, nil
}

// confirm returns a CONFIRM of A, changed by edit.
func (i *impostor) confirm(first bool, edit func(*wire.Endpoint)) wire.CLC {
	q := QP{Num: uint32(i.qpn)}
	e := i.A.Endpoint(&q, ownRMB(7), 1, 0x77)
	edit(&e)
	if len(i.eids) == 0 {
		e.GID = i.A.LinkGID
		return wire.Confirm{FirstContact: first, Endpoint: e}
	}
	c := wire.ConfirmV2{Endpoint: e, EID: i.eids[0]}
	if first {
		c.FirstContact = &wire.FirstContactExt{Direct: true, OS: smc.OSLinux, Release: wire.ReleaseV21, Hostname: wire.NewHostname("A"), MaxConns: 255, MaxLinks: 1}
	}
	return c
}

// impostures are what it says after ACCEPT.
var impostures = []struct {
	name string
	say  func(i *impostor) []wire.CLC
}{
	{"nothing", func(*impostor) []wire.CLC { return nil }},
	{"queue pair 0", func(i *impostor) []wire.CLC {
		return []wire.CLC{i.confirm(false, func(e *wire.Endpoint) { e.QPN = 0 })}
	}},
	{"queue pair 0 of a first contact", func(i *impostor) []wire.CLC {
		return []wire.CLC{i.confirm(true, func(e *wire.Endpoint) { e.QPN = 0 })}
	}},
	{"the queue pair of A", func(i *impostor) []wire.CLC { return []wire.CLC{i.confirm(false, func(*wire.Endpoint) {})} }},
	{"the queue pair of A for a first contact", func(i *impostor) []wire.CLC {
		return []wire.CLC{i.confirm(true, func(*wire.Endpoint) {})}
	}},
	{"the queue pair of A with an MTU that does not exist", func(i *impostor) []wire.CLC {
		return []wire.CLC{i.confirm(true, func(e *wire.Endpoint) { e.MTU = 15 })}
	}},
	{"A has lost the link group", func(i *impostor) []wire.CLC {
		return []wire.CLC{wire.Decline{PeerID: i.A.PeerID, Diagnosis: smc.DiagSync, OutOfSync: true}}
	}},
	{"another PROPOSAL", func(i *impostor) []wire.CLC {
		p, err := i.A.Proposal(i.eids...)
		if err != nil {
			i.t.Fatal(err)
		}
		return []wire.CLC{p}
	}},
}

// TestImpostor: a host that proposes in the name of another one does not get into that
// one's link group, and cannot disturb it.
func TestImpostor(t *testing.T) {
	for name, cfg := range versions {
		if testing.Short() && cfg.NoVersion2 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			l := newLab(t, cfg)
			i := impostor{lab: l, A: IdentityOf(l.A.Host, l.A.peerID(t, l.B)), eids: eidsOf(cfg)}
			for _, k := range l.B.links(t) {
				if k.Role == smc.Server {
					i.qpn = smc.QPN(k.PeerQPN)
				}
			}
			for _, say := range impostures {
				t.Run(say.name, func(t *testing.T) {
					i.t = t
					for range 3 {
						d, _, err := i.propose()
						if err != nil {
							t.Fatal(err)
						}
						for _, m := range say.say(&i) {
							if err := d.Send(m); err != nil {
								t.Error(err)
							}
						}
						_, _ = d.Conn.Write(make([]byte, 23)) // B may have reset the connection
						if say.say(&i) != nil {
							// B's answer: a reset, or DECLINE and then an echo.
							_ = d.Conn.SetReadDeadline(time.Now().Add(answerTime))
							_, _ = d.Conn.Read(make([]byte, wire.MaxCLCLen))
						}
						l.must(d.Close())
					}
					l.unharmed(t)
				})
			}
			l.finish()
		})
	}
}

// learn has A connect to the attacker, as anybody may have it do, and returns who A says
// it is.
func (l *lab) learn(t *testing.T) Identity {
	t.Helper()
	ln, err := l.C.Listen(t.Context(), 7000)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	dialed := make(chan error, 1)
	go func() {
		var c net.Conn
		err := l.A.Do(func() (err error) { c, err = l.A.stack.Dial("tcp4", ln.Addr().String()); return err })
		if err == nil {
			c.Close()
		}
		dialed <- err
	}()
	c, err := ln.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	d := &Dialog{Conn: c}
	p, err := ReceiveAs[wire.Proposal](d, answerTime)
	if err == nil {
		err = d.Send(wire.Decline{PeerID: l.C.Own.PeerID, Diagnosis: smc.DiagMem})
	}
	if err := errors.Join(err, <-dialed, d.Close()); err != nil {
		t.Fatal(err)
	}
	return IdentityOf(l.A.Host, p.PeerID)
}

// TestHalfOpen: a host that begins many first contacts and confirms none takes little, and
// does not keep another host, in whose name it may propose, from making its first contact.
func TestHalfOpen(t *testing.T) {
	for name, inName := range map[string]bool{"in the name of A": true, "with many peer IDs": false} {
		t.Run(name, func(t *testing.T) {
			l := newLabOf(t, userstack.Config{})
			who := l.learn(t)
			n := 1000
			if inName || testing.Short() {
				n = 30
			}
			list, err := l.C.Dial(t.Context(), l.B.address(), n)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				for _, d := range list {
					_ = d.Close()
				}
			})
			for i, d := range list {
				if !inName {
					who = l.C.Own
					who.PeerID[0], who.PeerID[1] = byte(i>>8), byte(i)
				}
				p, err := who.Proposal(eid)
				if err == nil {
					err = d.Send(p)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			// A's first contact: it must not wait for those. Each holds its turn longer than B lets
			// another client wait, so A's connection would be TCP.
			l.A.dialSMC(t, l.B).Close()
			accepted, declined := 0, 0
			for _, d := range list {
				m, err := d.Receive(answerTime)
				switch {
				case err == nil && m.CLCType() == wire.TypeAccept:
					accepted++
				case err == nil && m.CLCType() == wire.TypeDecline:
					declined++
				default:
					t.Fatalf("B answers %v, %v", m, err)
				}
			}
			most := rendezvous.MaxFirstContactsOfHost
			if inName {
				most = 1 // they are all one client's
			}
			if accepted < 1 || accepted > most || accepted+declined != n {
				t.Errorf("%d of %d first contacts are accepted and %d declined, at most %d are to be accepted", accepted, n, declined, most)
			}
			// Those that were accepted are given up after a while, or when they end.
			if testing.Short() {
				for _, d := range list {
					_ = d.Close()
				}
			}
			if err := netnstest.Until(settleTime, func() error {
				for _, g := range l.B.groups(t, nil) {
					if g.Peer == l.C.Addr() {
						return fmt.Errorf("link group %v with the attacker", g.ID)
					}
				}
				return nil
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

// brokenCLC are what a client can send that is no CLC message, or not the whole of one.
var brokenCLC = map[string]func(d *Dialog, proposal []byte) error{
	"nothing":         func(*Dialog, []byte) error { return nil },
	"half a header":   func(d *Dialog, p []byte) error { return write(d, p[:5]) },
	"half a PROPOSAL": func(d *Dialog, p []byte) error { return write(d, p[:len(p)/2]) },
	"byte by byte": func(d *Dialog, p []byte) error {
		for i := range p[:40] {
			if err := write(d, p[i:i+1]); err != nil {
				return err
			}
			time.Sleep(2 * time.Millisecond)
		}
		return nil
	},
	"length 65535": func(d *Dialog, p []byte) error { p[5], p[6] = 0xff, 0xff; return write(d, p) },
	"length 2048":  func(d *Dialog, p []byte) error { p[5], p[6] = 8, 0; return write(d, p) },
	"length 0":     func(d *Dialog, p []byte) error { p[5], p[6] = 0, 0; return write(d, p) },
	"length 8":     func(d *Dialog, p []byte) error { p[5], p[6] = 0, 8; return write(d, p) },
	"prefix area beyond the message": func(d *Dialog, p []byte) error {
		p[38], p[39] = 0xff, 0xff
		return write(d, p)
	},
	"no eyecatcher at the end": func(d *Dialog, p []byte) error { p[len(p)-1] ^= 1; return write(d, p) },
	"twice":                    func(d *Dialog, p []byte) error { return write(d, append(p, p...)) },
	"a megabyte of noise":      func(d *Dialog, _ []byte) error { return write(d, pattern(1<<20)) },
	"another message":          func(d *Dialog, _ []byte) error { return d.Send(wire.Confirm{}) },
}

// write writes bytes, unless the victim has reset the connection.
func write(d *Dialog, b []byte) error {
	_, err := d.Conn.Write(b)
	if errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		return nil
	}
	return err
}

// TestBrokenCLC: clients that send a PROPOSAL slowly, in part or with wrong lengths hold a
// TCP connection and no more, and not longer than a handshake may take.
func TestBrokenCLC(t *testing.T) {
	each := 20
	if testing.Short() {
		each = 2
	}
	l := newLab(t, userstack.Config{})
	var held []*Dialog
	for name, send := range brokenCLC {
		list, err := l.C.Dial(t.Context(), l.B.address(), each)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, list...)
		for _, d := range list {
			p, err := l.C.Own.Proposal(eid)
			if err != nil {
				t.Fatal(err)
			}
			b, err := p.AppendBinary(nil)
			if err == nil {
				err = send(d, b)
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	t.Cleanup(func() {
		for _, d := range held {
			_ = d.Close()
		}
	})
	l.unharmed(t)
	// Each is over soon: by DECLINE, or by a reset.
	deadline := time.Now().Add(rendezvous.MessageWait + settleTime)
	for _, d := range held {
		_ = d.Conn.SetReadDeadline(deadline)
		if _, err := io.Copy(io.Discard, d.Conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("B keeps a connection whose client sends no PROPOSAL")
		}
	}
	l.B.wantLog(t, "connection refused", "protocol error")
	l.unharmed(t)
	l.finish()
}

// TestForgedICMP: ICMP errors about the packets of the victims, which any host can send,
// end no connection and no link group.
func TestForgedICMP(t *testing.T) {
	l := newLab(t, userstack.Config{})
	f, err := NewForger(l.C.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.must(f.Close()) })
	s, err := Tap(t.Context(), l.B.Host, echoTime, func(s *Seen) bool { return s.From.Addr() == l.B.Links[0].IPv4 })
	if err != nil {
		t.Fatal(err)
	}
	lost := []Unreachable{{Protocol: unix.IPPROTO_UDP, Src: s.From, Dst: s.To}}
	for _, c := range l.honest.conns {
		local := c.LocalAddr().(*net.TCPAddr).AddrPort()
		remote := c.RemoteAddr().(*net.TCPAddr).AddrPort()
		if local.Addr() == l.A.Links[0].IPv4 {
			local, remote = remote, local // of B
		}
		lost = append(lost, Unreachable{Protocol: unix.IPPROTO_TCP, Src: local, Dst: remote})
	}
	for _, router := range []netip.Addr{l.C.Links[0].IPv4, l.A.Links[0].IPv4, netip.MustParseAddr("10.77.0.254")} {
		for _, u := range lost {
			for _, u.Code = range []uint8{0, 1, 2, 3, 4, 9, 13} {
				for _, u.MTU = range []uint16{0, 68, 576, 1280} {
					for range 20 {
						if err := f.ICMP(router, l.B.Host, u); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
		}
	}
	l.unharmed(t)
	l.finish()
}

// TestForgedRoCE: packets with the addresses of A, sent by a host that knows the queue
// pairs and not the packet sequence numbers, are not executed.
func TestForgedRoCE(t *testing.T) {
	l := newLab(t, userstack.Config{})
	f, err := NewForger(l.C.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.must(f.Close()) })
	end, err := wire.AppendLLC(nil, wire.LLCV2Little, wire.DeleteLink{All: true, Reason: wire.DeleteLinkOperator})
	if err != nil {
		t.Fatal(err)
	}
	seen := func(want func(s *Seen) bool) Seen {
		s, err := Tap(t.Context(), l.B.Host, echoTime, want)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, k := range l.B.links(t) {
		request := seen(func(s *Seen) bool { return s.BTH.DestQP() == k.QPN && !s.BTH.Opcode().IsResponse() })
		answer := seen(func(s *Seen) bool { return s.BTH.DestQP() == k.QPN && s.BTH.Opcode() == header.Acknowledge })
		for i := range uint32(5000) {
			// Behind and ahead of what the victims send meanwhile.
			for _, far := range []uint32{^uint32(1000) - i, 1<<21 + i} {
				pkt := Message(end)
				pkt.PSN = request.BTH.PSN() + far
				ack := Packet{Op: header.Acknowledge, PSN: answer.BTH.PSN() + far, AETH: &Answer{header.NAKRemoteAccess, i}}
				for _, pkt := range []*Packet{&pkt, &ack} {
					pkt.DestQP, pkt.PSN = k.QPN, pkt.PSN&header.PSNMask
					if err := f.RoCE(request.From, l.B.Host, pkt); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	l.unharmed(t)
	l.finish()
}
