// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"smcr/internal/testing/testkind"
	"smcr/nl"
	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack/linkgroup"
	"smcr/userstack/tcpopt"
)

// TestFallbackFor checks that every reason to stay TCP has a separate code.
func TestFallbackFor(t *testing.T) {
	for _, test := range []struct {
		err  error
		want nl.ConnFallback
	}{
		{&DeclineError{Code: smc.DiagPeerNoSMC}, nl.ConnFallback{Reason: 0x03010000}},
		{&DeclineError{Code: smc.DiagIPsec}, nl.ConnFallback{Reason: 0x03020000}},
		{&DeclineError{Remote: true, Code: smc.DiagPrefixMismatch}, nl.ConnFallback{Reason: 0x05000000, Peer: 0x03070000}},
		{fmt.Errorf("x: %w", &DeclineError{Code: smc.DiagMem}), nl.ConnFallback{Reason: 0x01010000}},
		{fmt.Errorf("%w: open", ErrNoDevice), nl.ConnFallback{Reason: 0x03030002}},
		{errRouted(netip.MustParseAddr("192.0.2.1")), nl.ConnFallback{Reason: 0x030e0000}},
		{fmt.Errorf("%w: this host", ErrNotOnLink), nl.ConnFallback{Reason: 0x030e0000}},
		{ErrNoOption, nl.ConnFallback{Reason: 0x03000000}},
		{fmt.Errorf("%w: fast open", tcpopt.ErrUnsupportedSocket), nl.ConnFallback{Reason: 0x03060000}},
		{linkgroup.ErrTimeout, nl.ConnFallback{Reason: 0x02010000}},
		{errors.New("anything"), nl.ConnFallback{Reason: 0x09990000}},
		{ErrStackClosed, nl.ConnFallback{}},
	} {
		if got := fallbackFor(test.err); got != test.want {
			t.Errorf("%v: %+v, want %+v", test.err, got, test.want)
		}
		if r := smc.Diagnosis(test.want.Reason); r != 0 && r.Text() == "" {
			t.Errorf("%v: code %s has no name", test.err, r)
		}
	}
}

// TestDialStaysTCP checks that connections of a Go program that stay TCP are
// counted and listed, on both sides.
func TestDialStaysTCP(t *testing.T) {
	testkind.System(t)
	s, err := New(Config{NoOption: true, Providers: []rdmaverbs.Provider{noDevices{}}, Hostname: "host"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := s.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := s.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	ctl := s.Control()
	f, err := ctl.Fallbacks(t.Context())
	if err != nil || f.ClientTotal != 1 || f.ServerTotal != 1 || len(f.Reasons) != 2 || f.Reasons[0].Reason != uint32(smc.DiagConfig) {
		t.Errorf("counted: %+v, %v", f, err)
	}
	tcp := func() (n int) {
		rows, err := ctl.Connections(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rows {
			if r.Mode == nl.ModeTCP && r.State == smc.StateActive && r.Fallback.Reason == uint32(smc.DiagConfig) && (r.Remote == addrPort(l.Addr()) || r.Local == addrPort(l.Addr())) {
				n++
			}
		}
		return n
	}
	if n := tcp(); n != 2 {
		t.Errorf("%d listed", n)
	}
	c.Close()
	in.Close()
	if n := tcp(); n != 0 {
		t.Errorf("%d listed after the end", n)
	}
}

// noDevices is a provider that must not be asked for devices.
type noDevices struct{ rdmaverbs.Provider }
