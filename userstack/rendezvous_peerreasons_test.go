// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"smcr/nl"
	"smcr/smc"
	"smcr/stats"
	"smcr/userstack/wire"
)

// TestPeerReasonsAreCounted: peers that decline are counted by their reasons, on both sides.
// Peers that make up codes share one counter.
func TestPeerReasonsAreCounted(t *testing.T) {
	const made = 200 // codes that are made up
	codes := []smc.Diagnosis{smc.DiagNoSMCRDev, smc.DiagNoSMCRDev, smc.DiagMem, 0, 1<<32 - 1}
	for i := range smc.Diagnosis(made) {
		codes = append(codes, 0x66000000+i)
	}
	want := func(side smc.Role) nl.Fallbacks {
		n := uint64(len(codes))
		f := nl.Fallbacks{
			Reasons:     []nl.Fallback{{Side: side, Reason: uint32(smc.DiagPeerDeclined), Count: n}},
			PeerReasons: []nl.Fallback{{Side: side, Count: made + 2}, {Side: side, Reason: uint32(smc.DiagMem), Count: 1}, {Side: side, Reason: uint32(smc.DiagNoSMCRDev), Count: 2}},
		}
		if side == smc.Client {
			f.ClientTotal = n
		} else {
			f.ServerTotal = n
		}
		return f
	}
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		for _, code := range codes {
			decline := wire.Decline{PeerID: peerID, Diagnosis: code}
			for _, side := range []struct {
				run  func(context.Context, TCPConn) (*Conn, error)
				play func(scripted)
			}{
				{b.client.Client, func(p scripted) { as[wire.Proposal](p); p.send(decline) }},
				{b.server.Server, func(p scripted) { p.send(decline) }},
			} {
				own, peer := b.tcp()
				done := make(chan struct{})
				go func() {
					defer close(done)
					side.play(scripted{t, peer})
				}()
				_, err := side.run(t.Context(), own)
				<-done
				wantDecline(t, "stack", err, code, true)
				own.Close()
				peer.Close()
			}
		}
		for side, s := range map[smc.Role]*Stack{smc.Client: b.client, smc.Server: b.server} {
			if diff := cmp.Diff(want(side), list(t, s.Control().Fallbacks)); diff != "" {
				t.Errorf("fallbacks as %v (-want +got):\n%s", side, diff)
			}
		}
	})
}

// TestOwnReasonIsNoPeerReason: of two fallbacks with the same code, only that of the peer counts
// among the reasons of peers.
func TestOwnReasonIsNoPeerReason(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		b.client.count(smc.Client, fallbackFor(&DeclineError{Remote: true, Code: smc.DiagVLAN}))
		b.client.count(smc.Client, fallbackFor(&DeclineError{Code: smc.DiagVLAN}))
		f := list(t, b.client.Control().Fallbacks)
		if want := []stats.Fallback{{Reason: uint32(smc.DiagVLAN), Count: 1}}; !slices.Equal(f.PeerReasons, want) {
			t.Errorf("reasons of peers: %v, want %v", f.PeerReasons, want)
		}
		if want := []stats.Fallback{{Reason: uint32(smc.DiagVLAN), Count: 1}, {Reason: uint32(smc.DiagPeerDeclined), Count: 1}}; !slices.Equal(f.Reasons, want) {
			t.Errorf("reasons: %v, want %v", f.Reasons, want)
		}
	})
}
