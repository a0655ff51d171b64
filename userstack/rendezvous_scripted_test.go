// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"bytes"
	"context"
	"encoding"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/simfabric"
	"smcr/userstack/wire"
)

// scripted is one end of a TCP connection. The test plays the other end.
type scripted struct {
	t  *testing.T
	tc *simfabric.TCPConn
}

func (p scripted) send(m encoding.BinaryAppender) {
	p.t.Helper()
	raw, err := m.AppendBinary(nil)
	if err != nil {
		p.t.Fatal(err)
	}
	p.raw(raw)
}

func (p scripted) raw(raw []byte) {
	p.t.Helper()
	if _, err := p.tc.Write(raw); err != nil {
		p.t.Fatal(err)
	}
}

func (p scripted) recv() wire.CLC {
	p.t.Helper()
	p.tc.SetReadDeadline(time.Now().Add(time.Minute))
	buf := make([]byte, wire.MaxCLCLen)
	if _, err := io.ReadFull(p.tc, buf[:wire.HeaderLen]); err != nil {
		p.t.Fatal(err)
	}
	hd, err := wire.ParseHeader(buf)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := io.ReadFull(p.tc, buf[wire.HeaderLen:hd.Length]); err != nil {
		p.t.Fatal(err)
	}
	m, err := wire.ParseCLC(buf[:hd.Length])
	if err != nil {
		p.t.Fatal(err)
	}
	return m
}

func as[T wire.CLC](p scripted) T {
	p.t.Helper()
	m := p.recv()
	v, ok := m.(T)
	if !ok {
		p.t.Fatalf("received %s, want %T", m.CLCType(), v)
	}
	return v
}

var peerID = smc.NewPeerID(77, smc.MAC{2, 0, 0, 0, 0, 9})

// endpointOf returns a valid endpoint of a peer that does not exist.
func endpointOf(dev byte) wire.Endpoint {
	return wire.Endpoint{
		PeerID: peerID, GID: smc.GID{0: 0xfe, 1: 0x80, 15: dev}, MAC: smc.MAC{2, 0, 0, 0, 9, dev},
		QPN: 4711, RMB: smc.RToken{RKey: 5, Addr: 1 << 20}, RMBEIndex: 1, AlertToken: 99, RMBESize: 1, MTU: 3, PSN: 1,
	}
}

// TestScriptedServer plays servers for a client.
func TestScriptedServer(t *testing.T) {
	decline := wire.Decline{PeerID: peerID, Diagnosis: smc.DiagMaxConns}
	tests := []struct {
		name string
		play func(t *testing.T, p scripted)
		want func(t *testing.T, err error, tcp *simfabric.TCPConn)
	}{
		{"Declines", func(_ *testing.T, p scripted) {
			as[wire.Proposal](p)
			p.send(decline)
			p.raw([]byte("220 hello\r\n")) // data of the TCP connection follows at once
		}, func(t *testing.T, err error, tcp *simfabric.TCPConn) {
			wantDecline(t, "client", err, smc.DiagMaxConns, true)
			got := make([]byte, 11)
			if _, err := io.ReadFull(tcp, got); err != nil || string(got) != "220 hello\r\n" {
				t.Errorf("after DECLINE: %q, %v", got, err)
			}
		}},
		{"DeclinesAfterConfirm", func(_ *testing.T, p scripted) {
			as[wire.Proposal](p)
			p.send(wire.Accept{FirstContact: true, Endpoint: endpointOf(1)})
			if c := as[wire.Confirm](p); !c.FirstContact {
				p.t.Error("CONFIRM without the first-contact flag")
			}
			p.send(decline)
			p.raw([]byte("data"))
		}, func(t *testing.T, err error, tcp *simfabric.TCPConn) {
			wantDecline(t, "client", err, smc.DiagMaxConns, true)
			got := make([]byte, 4)
			if _, err := io.ReadFull(tcp, got); err != nil || string(got) != "data" {
				t.Errorf("after DECLINE: %q, %v", got, err)
			}
		}},
		{"NeverConfirmsLink", func(_ *testing.T, p scripted) {
			as[wire.Proposal](p)
			p.send(wire.Accept{FirstContact: true, Endpoint: endpointOf(1)})
			as[wire.Confirm](p)
			as[wire.Decline](p)
		}, func(t *testing.T, err error, _ *simfabric.TCPConn) {
			wantDecline(t, "client", err, smc.DiagNoPath, false)
		}},
		{"ReservedMTU", func(_ *testing.T, p scripted) {
			as[wire.Proposal](p)
			e := endpointOf(1)
			e.MTU = 9
			p.send(wire.Accept{FirstContact: true, Endpoint: e})
			as[wire.Decline](p) // RFC 7609, appendix C.6
		}, func(t *testing.T, err error, _ *simfabric.TCPConn) {
			wantDecline(t, "client", err, smc.DiagRToken, false)
		}},
		{"NoElement", func(_ *testing.T, p scripted) {
			as[wire.Proposal](p)
			e := endpointOf(1)
			e.RMBEIndex = 0
			p.send(wire.Accept{FirstContact: true, Endpoint: e})
			as[wire.Decline](p)
		}, func(t *testing.T, err error, _ *simfabric.TCPConn) {
			wantDecline(t, "client", err, smc.DiagRToken, false)
		}},
		{"UnknownGroup", func(_ *testing.T, p scripted) {
			as[wire.Proposal](p)
			p.send(wire.Accept{Endpoint: endpointOf(1)})
			if d := as[wire.Decline](p); d.Diagnosis != smc.DiagSync || !d.OutOfSync {
				p.t.Errorf("declined with %+v", d)
			}
		}, func(t *testing.T, err error, _ *simfabric.TCPConn) {
			wantDecline(t, "client", err, smc.DiagSync, false)
		}},
		{"SaysNothing", func(_ *testing.T, p scripted) { as[wire.Proposal](p) }, wantTimeout},
		{"SaysHalf", func(_ *testing.T, p scripted) {
			as[wire.Proposal](p)
			raw, _ := decline.AppendBinary(nil)
			p.raw(raw[:len(raw)-1])
		}, wantTimeout},
		{"Hangs up", func(_ *testing.T, p scripted) {
			as[wire.Proposal](p)
			p.tc.Close()
		}, func(t *testing.T, err error, _ *simfabric.TCPConn) {
			if !errors.Is(err, io.EOF) {
				t.Errorf("client: %v, want EOF", err)
			}
		}},
		{"Garbage", func(_ *testing.T, p scripted) {
			as[wire.Proposal](p)
			p.raw([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
		}, wantBroken},
		{"ShortLength", func(_ *testing.T, p scripted) {
			as[wire.Proposal](p)
			p.raw([]byte{0xe2, 0xd4, 0xc3, 0xd9, 2, 0, 9, 0x10, 0})
		}, wantBroken},
		{"WrongType", func(_ *testing.T, p scripted) {
			as[wire.Proposal](p)
			p.send(wire.Confirm{Endpoint: endpointOf(1)})
		}, wantBroken},
		{"WrongTypeAfterConfirm", func(_ *testing.T, p scripted) {
			as[wire.Proposal](p)
			p.send(wire.Accept{FirstContact: true, Endpoint: endpointOf(1)})
			as[wire.Confirm](p)
			p.send(wire.Accept{FirstContact: true, Endpoint: endpointOf(1)})
		}, nil},
		{"HangsUpAfterConfirm", func(_ *testing.T, p scripted) {
			as[wire.Proposal](p)
			p.send(wire.Accept{FirstContact: true, Endpoint: endpointOf(1)})
			as[wire.Confirm](p)
			p.tc.SetLinger(0)
			p.tc.Close()
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{})
				ct, st := b.tcp()
				t.Cleanup(func() { st.Close(); ct.Close() })
				rendezvousFails(t, b.client, b.client.Client, ct, st, tt.play, tt.want)
			})
		})
	}
}

// rendezvousFails plays the peer of a rendezvous, which is Client or Server of stack. The
// rendezvous must fail in time and leave no link group. want, if it is not nil, checks
// the error.
func rendezvousFails(t *testing.T, stack *Stack, rendezvous func(context.Context, TCPConn) (*Conn, error), own, peer *simfabric.TCPConn,
	play func(*testing.T, scripted), want func(*testing.T, error, *simfabric.TCPConn)) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		play(t, scripted{t, peer})
	}()
	start := time.Now()
	c, err := rendezvous(context.Background(), own)
	if err == nil {
		c.Close()
		t.Fatal("no error")
	}
	if d := time.Since(start); d > 15*time.Second {
		t.Errorf("took %v", d)
	}
	<-done
	if want != nil {
		want(t, err, own)
	}
	time.Sleep(10 * time.Second)
	if len(groups(stack)) != 0 {
		t.Error("a link group is left")
	}
}

func wantTimeout(t *testing.T, err error, _ *simfabric.TCPConn) {
	t.Helper()
	var ne net.Error
	if !errors.As(err, &ne) || !ne.Timeout() || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%v, want a timeout", err)
	}
	wantBroken(t, err, nil)
}

// wantBroken checks that an error means that TCP cannot continue.
func wantBroken(t *testing.T, err error, _ *simfabric.TCPConn) {
	t.Helper()
	var d *DeclineError
	if err == nil || errors.As(err, &d) {
		t.Errorf("%v, want an error that is no DeclineError", err)
	}
}

// TestScriptedClient plays clients for a server.
func TestScriptedClient(t *testing.T) {
	proposal := wire.Proposal{
		PeerID: peerID, GID: smc.GID{15: 1}, MAC: smc.MAC{2, 0, 0, 0, 0, 9},
		IPv4: prefix(1, 0).Masked(), Growth: make([]byte, wire.ProposalGrowthLinux),
	}
	decline := wire.Decline{PeerID: peerID, Diagnosis: smc.DiagMem}
	tests := []struct {
		name string
		play func(t *testing.T, p scripted)
		want func(t *testing.T, err error, tcp *simfabric.TCPConn)
	}{
		{"DeclinesAtOnce", func(_ *testing.T, p scripted) {
			p.send(decline)
			p.raw([]byte("GET / HTTP/1.0\r\n"))
		}, func(t *testing.T, err error, tcp *simfabric.TCPConn) {
			wantDecline(t, "server", err, smc.DiagMem, true)
			got := make([]byte, 16)
			if _, err := io.ReadFull(tcp, got); err != nil || string(got) != "GET / HTTP/1.0\r\n" {
				t.Errorf("after DECLINE: %q, %v", got, err)
			}
		}},
		{"DeclinesAfterAccept", func(_ *testing.T, p scripted) {
			p.send(proposal)
			if a := as[wire.Accept](p); !a.FirstContact {
				p.t.Error("ACCEPT without the first-contact flag")
			}
			p.send(decline)
			p.raw([]byte("data"))
		}, func(t *testing.T, err error, tcp *simfabric.TCPConn) {
			wantDecline(t, "server", err, smc.DiagMem, true)
			got := make([]byte, 4)
			if _, err := io.ReadFull(tcp, got); err != nil || string(got) != "data" {
				t.Errorf("after DECLINE: %q, %v", got, err)
			}
		}},
		{"DeclinesAfterConfirm", func(_ *testing.T, p scripted) {
			p.send(proposal)
			as[wire.Accept](p)
			p.send(wire.Confirm{FirstContact: true, Endpoint: endpointOf(1)})
			p.send(decline)
		}, func(t *testing.T, err error, _ *simfabric.TCPConn) {
			wantDecline(t, "server", err, smc.DiagMem, true)
		}},
		{"OtherSubnet", func(_ *testing.T, p scripted) {
			other := proposal
			other.IPv4 = netip.MustParsePrefix("10.7.0.0/16")
			p.send(other)
			if d := as[wire.Decline](p); d.Diagnosis != smc.DiagPrefixMismatch {
				p.t.Errorf("declined with %v", d.Diagnosis)
			}
		}, func(t *testing.T, err error, _ *simfabric.TCPConn) {
			wantDecline(t, "server", err, smc.DiagPrefixMismatch, false)
		}},
		{"NeverAnswersLink", func(_ *testing.T, p scripted) {
			p.send(proposal)
			as[wire.Accept](p)
			p.send(wire.Confirm{FirstContact: true, Endpoint: endpointOf(1)})
			as[wire.Decline](p)
		}, func(t *testing.T, err error, _ *simfabric.TCPConn) {
			wantDecline(t, "server", err, smc.DiagNoPath, false)
		}},
		{"SaysNothing", func(*testing.T, scripted) {}, wantTimeout},
		{"NoConfirm", func(_ *testing.T, p scripted) {
			p.send(proposal)
			as[wire.Accept](p)
		}, wantTimeout},
		{"Garbage", func(_ *testing.T, p scripted) { p.raw([]byte("GET / HTTP/1.0\r\n\r\n")) }, wantBroken},
		{"GarbageForConfirm", func(_ *testing.T, p scripted) {
			p.send(proposal)
			as[wire.Accept](p)
			p.raw(bytes.Repeat([]byte{0xe2}, 100))
		}, wantBroken},
		{"HangsUp", func(_ *testing.T, p scripted) {
			p.send(proposal)
			as[wire.Accept](p)
			p.tc.SetLinger(0)
			p.tc.Close()
		}, wantBroken},
		{"ConfirmFirst", func(_ *testing.T, p scripted) { p.send(wire.Confirm{Endpoint: endpointOf(1)}) }, wantBroken},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				b := newBed(t, bedConfig{})
				ct, st := b.tcp()
				t.Cleanup(func() { st.Close(); ct.Close() })
				rendezvousFails(t, b.server, b.server.Server, st, ct, tt.play, tt.want)
				// The next first contact is possible.
				ct.Close()
				st.Close()
				b.finish(b.connect())
			})
		})
	}
}
