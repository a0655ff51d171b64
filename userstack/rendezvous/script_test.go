// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// The vocabulary of the scripts in machine_test.go: names for events, and for what a
// machine does.

var (
	errTest    = errors.New("test")
	start      = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	testPeer   = smc.NewPeerID(7, smc.MAC{2, 0, 0, 0, 0, 9})
	testOwn    = smc.NewPeerID(8, smc.MAC{2, 0, 0, 0, 0, 1})
	testEID    = wire.EID([]byte(fmt.Sprintf("%-32s", "COMMON")))
	testSubnet = netip.MustParsePrefix("10.0.0.1/24")
	testGIDv2  = smc.GID(netip.MustParseAddr("10.0.0.2").As16())
)

func testEndpoint() wire.Endpoint {
	return wire.Endpoint{
		PeerID: testPeer, GID: smc.GID{15: 1}, MAC: smc.MAC{2, 0, 0, 0, 0, 9}, QPN: 4711,
		RMB: smc.RToken{RKey: 5, Addr: 1 << 20}, RMBEIndex: 1, AlertToken: 99, RMBESize: 1, MTU: 3, PSN: 1,
	}
}

// testLocal is this host's end of a connection.
func testLocal() wire.Endpoint {
	return wire.Endpoint{
		PeerID: testOwn, GID: smc.GID{15: 2}, MAC: smc.MAC{2, 0, 0, 0, 0, 1}, QPN: 815,
		RMB: smc.RToken{RKey: 6, Addr: 2 << 20}, RMBEIndex: 2, AlertToken: 98, RMBESize: 2, MTU: 5, PSN: 2,
	}
}

// testHost has both versions.
func testHost() Host {
	return Host{
		PeerID: testOwn, Local: testSubnet.Addr(), Subnets: []netip.Prefix{testSubnet}, IPv4: testSubnet.Masked(),
		Port: Port{GID: smc.GID{15: 2}, MAC: smc.MAC{2, 0, 0, 0, 0, 1}},
		EIDs: []wire.EID{testEID}, Release: wire.ReleaseV21, MaxConns: MaxConnsV2, MaxLinks: MaxLinksV2,
		PortV2: PortV2{Port: Port{GID: smc.GID(testSubnet.Addr().As16()), MAC: smc.MAC{2, 0, 0, 0, 0, 1}}, Local: testSubnet, GIDs: []smc.GID{smc.GID(testSubnet.Addr().As16())}},
	}
}

func hostWith(edit func(*Host)) Event {
	h := testHost()
	edit(&h)
	return Surveyed{h}
}

func failed(f Failure) Failure {
	f.Why = Refusal{Code: smc.DiagMem, Err: errTest}
	return f
}

func testProposal(v1 bool, v2 smcMode) wire.Proposal {
	p := wire.Proposal{PeerID: testPeer, Growth: make([]byte, wire.ProposalGrowthLinux)}
	if v1 {
		p.GID, p.MAC, p.IPv4 = smc.GID{15: 1}, smc.MAC{2, 0, 0, 0, 0, 9}, testSubnet.Masked()
	} else {
		p.TypeV1 = wire.ModeNone
	}
	if v2 == noV2 {
		return p
	}
	o := wire.Offer{Mode: wire.ModeR, EIDs: []wire.EID{testEID}, GID: testGIDv2, Release: 1, MaxConns: 255, MaxLinks: 2}
	if v2 == otherEID {
		o.EIDs[0][0] = 'X'
	}
	p, err := p.WithOffer(o)
	if err != nil {
		panic(err)
	}
	return p
}

type smcMode int

const (
	noV2 smcMode = iota
	withV2
	otherEID
)

func testExt(edit func(*wire.FirstContactExt)) *wire.FirstContactExt {
	x := &wire.FirstContactExt{Direct: true, OS: smc.OSLinux, Release: 1, Hostname: wire.NewHostname("peer"), MaxConns: 255, MaxLinks: 2}
	edit(x)
	return x
}

func nothing(*wire.FirstContactExt) {}

// testEvents are events by name. A CLC message is handed in in pieces.
var testEvents = map[string]any{
	"Prepared":                  Prepared{},
	"Surveyed":                  hostWith(func(*Host) {}),
	"Surveyed, version 1":       hostWith(func(h *Host) { h.EIDs = nil }),
	"Surveyed, version 2":       hostWith(func(h *Host) { h.NoPort = &Refusal{Code: smc.DiagNoRoute} }),
	"Surveyed, release 0":       hostWith(func(h *Host) { h.Release = 0 }),
	"Surveyed, nothing":         hostWith(func(h *Host) { h.EIDs, h.NoPort = nil, &Refusal{Code: smc.DiagNoRoute} }),
	"Surveyed, other subnet":    hostWith(func(h *Host) { h.EIDs, h.Subnets = nil, nil }),
	"Surveyed, no path":         hostWith(func(h *Host) { h.NoPath = &Refusal{Code: smc.DiagNoRoute} }),
	"Surveyed, no port 2":       hostWith(func(h *Host) { h.NoPortV2 = &Refusal{Code: smc.DiagNoSMCRDev} }),
	"PathFound":                 PathFound{},
	"PathFound, routed":         PathFound{Routed: true},
	"Admitted":                  Admitted{},
	"Turn":                      Turn{testOwn},
	"Joined":                    Joined{},
	"NoGroup":                   NoGroup{},
	"GroupMade":                 GroupMade{Local: testLocal()},
	"Connected":                 Connected{},
	"Attached":                  Attached{testLocal()},
	"Failed":                    Failed{failed(Failure{})},
	"Failed, too late":          Failed{failed(Failure{NoFallback: true})},
	"Failed, not its own":       Failed{failed(Failure{NotOwner: true})},
	"LetGone":                   LetGone{},
	"Sent":                      Sent{},
	"SendFailed":                SendFailed{errTest},
	"LLCDone":                   LLCDone{testLocal()},
	"LLCFailed":                 LLCFailed{failed(Failure{})},
	"LLCFailed, too late":       LLCFailed{failed(Failure{NoFallback: true})},
	"PROPOSAL":                  testProposal(true, noV2),
	"PROPOSAL, both":            testProposal(true, withV2),
	"PROPOSAL, both, other EID": testProposal(true, otherEID),
	"PROPOSAL, version 2":       testProposal(false, withV2),
	"PROPOSAL, other EID":       testProposal(false, otherEID),
	"PROPOSAL, neither":         testProposal(false, noV2),
	"ACCEPT":                    wire.Accept{Endpoint: testEndpoint()},
	"ACCEPT, first":             wire.Accept{Endpoint: testEndpoint(), FirstContact: true},
	"ACCEPT 2":                  wire.AcceptV2{Endpoint: testEndpoint(), EID: testEID},
	"ACCEPT 2, first":           wire.AcceptV2{Endpoint: testEndpoint(), EID: testEID, FirstContact: testExt(nothing)},
	"ACCEPT 2, first, routed":   wire.AcceptV2{Endpoint: testEndpoint(), EID: testEID, FirstContact: testExt(func(x *wire.FirstContactExt) { x.Direct = false })},
	"ACCEPT 2, other EID":       wire.AcceptV2{Endpoint: testEndpoint(), FirstContact: testExt(nothing)},
	"ACCEPT 2, release":         wire.AcceptV2{Endpoint: testEndpoint(), EID: testEID, FirstContact: testExt(func(x *wire.FirstContactExt) { x.Release = 2 })},
	"ACCEPT 2, connections":     wire.AcceptV2{Endpoint: testEndpoint(), EID: testEID, FirstContact: testExt(func(x *wire.FirstContactExt) { x.MaxConns = 15 })},
	"ACCEPT 2, links":           wire.AcceptV2{Endpoint: testEndpoint(), EID: testEID, FirstContact: testExt(func(x *wire.FirstContactExt) { x.MaxLinks = 3 })},
	"CONFIRM":                   wire.Confirm{Endpoint: testEndpoint()},
	"CONFIRM 2":                 wire.ConfirmV2{Endpoint: testEndpoint(), EID: testEID},
	"CONFIRM 2, first":          wire.ConfirmV2{Endpoint: testEndpoint(), EID: testEID, FirstContact: testExt(nothing), GIDs: []smc.GID{testGIDv2}},
	"CONFIRM 2, first, links":   wire.ConfirmV2{Endpoint: testEndpoint(), EID: testEID, FirstContact: testExt(func(x *wire.FirstContactExt) { x.MaxLinks = 1 })},
	"DECLINE":                   wire.Decline{PeerID: testPeer, Diagnosis: smc.DiagMaxConns},
	"DECLINE, out of sync":      wire.Decline{PeerID: testPeer, Diagnosis: smc.DiagMem, OutOfSync: true},
	"data":                      Received{[]byte("GET / HT")},
	"half":                      Received{[]byte{0xe2, 0xd4, 0xc3, 0xd9}},
	"one byte":                  Received{[]byte{0xe2}},
	"half a DECLINE":            half{},
	"EOF":                       EOF{},
	"ReadFailed":                ReadFailed{errTest},
	"ReadStopped":               ReadStopped{},
	"FirstBytes, few":           FirstBytes{[]byte{0xe2, 0xd4}},
	"FirstBytes, CLC":           FirstBytes{[]byte{0xe2, 0xd4, 0xc3, 0xd9, 1, 0, 52, 0x10}},
	"FirstBytes, data":          FirstBytes{[]byte("GET / HT")},
	"TCPState, unacked":         TCPState{Unacked: true},
	"TCPState, acked":           TCPState{},
	"TCPState, data":            TCPState{Unacked: true, First: []byte("GET / HT")},
	"TCPState, DECLINE":         TCPState{First: []byte{0xe2, 0xd4, 0xc3, 0xd9, 4, 0, 28, 0x10}},
	"Canceled":                  Canceled{errTest},
	"Closed":                    Closed{errTest},
}

// half is the beginning of a DECLINE.
type half struct{}

// script is a machine with its clock.
type script struct {
	m   *Machine
	now time.Time
}

// newScript begins a machine by name.
func newScript(t testing.TB, name string, seen func(*table, State, EventKind, State)) *script {
	t.Helper()
	c := Config{PeerID: testOwn, Hostname: "own", ConfirmWait: 30 * time.Second, NotCLC: Refusal{Code: smc.DiagPeerNoSMC}}
	s := &script{now: start}
	switch name {
	case "client", "client, held":
		c.Held = name != "client"
		s.m = NewClient(c)
	case "server", "server, held":
		c.Held = name != "server"
		s.m = NewServer(start, c)
	case "looking", "looking, option":
		c.Look, c.OptionSeen = true, name != "looking"
		s.m = NewServer(start, c)
	default:
		t.Fatalf("no machine %q", name)
	}
	s.m.trace = func(from State, on EventKind, to State) { seen(s.m.table, from, on, to) }
	return s
}

// happens hands in an event by name: one of testEvents, or a time that passes ("+6s").
func (s *script) happens(t testing.TB, name string) {
	t.Helper()
	if d, ok := strings.CutPrefix(name, "+"); ok {
		dur, err := time.ParseDuration(d)
		if err != nil {
			t.Fatal(err)
		}
		s.now = s.now.Add(dur)
		s.m.Handle(s.now, Tick{})
		return
	}
	switch ev := testEvents[name].(type) {
	case wire.CLC:
		raw, err := ev.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		s.feed(raw)
	case half:
		raw, _ := wire.Decline{Diagnosis: smc.DiagMem}.AppendBinary(nil)
		s.feed(raw[:len(raw)-1])
	case Event:
		s.m.Handle(s.now, ev)
	default:
		t.Fatalf("no event %q", name)
	}
}

// feed hands in bytes as a driver does, in as many pieces as the machine wants them.
func (s *script) feed(raw []byte) {
	for len(raw) > 0 {
		n := min(len(raw), s.m.Want())
		if n == 0 && s.m.State() == Draining {
			n = len(raw)
		}
		if n == 0 {
			return
		}
		s.m.Handle(s.now, Received{raw[:n]})
		raw = raw[n:]
	}
}

// did says what the machine did: its state, its actions, and its outcome.
func (s *script) did() string {
	var list []string
	for _, a := range s.m.TakeActions(nil) {
		list = append(list, actionName(a))
	}
	out := s.m.State().String()
	if len(list) > 0 {
		out += ": " + strings.Join(list, ", ")
	}
	if s.m.State() != Over {
		return out
	}
	switch o := s.m.Outcome(); {
	case o.Refused != nil && o.Err != nil:
		out += " = two outcomes"
	case o.Refused != nil && o.Refused.Remote:
		out += " = peer declined " + o.Refused.Code.Text()
	case o.Refused != nil:
		out += " = TCP, " + o.Refused.Code.Text()
	case o.Err != nil:
		out += " = reset"
		for _, e := range []struct {
			err  error
			name string
		}{{ErrProtocol, "protocol"}, {ErrTooLate, "too late"}, {errInternal, "internal"}, {io.EOF, "EOF"}, {ErrNotLetGo, "not let go"}} {
			if errors.Is(o.Err, e.err) {
				out += ", " + e.name
			}
		}
	default:
		out += " = SMC-R"
	}
	return out
}

// actionName is the type of an action; for Send with the message, and its version if it is
// not 1.
func actionName(a Action) string {
	name := reflect.TypeOf(a).Name()
	send, ok := a.(Send)
	if !ok {
		return name
	}
	name += " " + send.Message.CLCType().String()
	first := false
	switch m := send.Message.(type) {
	case wire.Accept:
		first = m.FirstContact
	case wire.Confirm:
		first = m.FirstContact
	case wire.AcceptV2:
		first, name = m.FirstContact != nil, name+" 2"
	case wire.ConfirmV2:
		first, name = m.FirstContact != nil, name+" 2"
	case wire.Decline:
		if m.Version == wire.Version2 {
			name += " 2"
		}
		if m.OutOfSync {
			name += " out of sync"
		}
	case wire.Proposal:
		switch {
		case m.TypeV1 == wire.ModeNone:
			name += " 2"
		case m.Version == wire.Version2:
			name += " 1 and 2"
		}
	}
	if first {
		name += " first"
	}
	return name
}

// allowed checks that a transition is in a table.
func allowed(tb *table, from State, on EventKind, to State) error {
	if tr := tb.rows[from][on]; tr != nil {
		if !slices.Contains(tr.to, to) {
			return fmt.Errorf("%s in %s leads to %s, want one of %v", on, from, to, tr.to)
		}
		return nil
	}
	if to != Over && to != from {
		return fmt.Errorf("%s in %s leads to %s, and is not in the table", on, from, to)
	}
	return nil
}
