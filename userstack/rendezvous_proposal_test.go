// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"testing"
	"time"

	"smcr/smc"
	"smcr/userstack/linkgroup"
	"smcr/userstack/wire"
)

// propose starts a client and takes its PROPOSAL. play goes on as the server. It returns
// the error of the client.
func (b *bed) propose(t *testing.T, play func(p scripted)) error {
	t.Helper()
	ct, st := b.tcp()
	result := make(chan error, 1)
	go func() {
		c, err := b.client.Client(context.Background(), ct)
		if err == nil {
			c.Close()
		}
		result <- err
	}()
	p := scripted{t, st}
	as[wire.Proposal](p)
	play(p)
	return <-result
}

// TestProposalCommitsNothing: a client that has sent PROPOSAL has no resources for the
// connection yet, neither without a link group nor with one (RFC 7609, section 3.5.1.2).
func TestProposalCommitsNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		for _, groupThere := range []bool{false, true} {
			if groupThere {
				c, s := b.connect()
				defer b.finish(c, s)
			}
			time.Sleep(time.Second) // until what the first contact does not need any more is freed
			before, conns := b.w.Objects(), 0
			err := b.propose(t, func(p scripted) {
				time.Sleep(time.Second)
				after := b.w.Objects()
				after.Devices = before.Devices
				if after != before {
					t.Errorf("link group %v: objects %+v, and %+v before", groupThere, after, before)
				}
				for _, g := range groups(b.client) {
					g.View(func(core *linkgroup.Group) { conns += core.Conns() })
				}
				p.send(wire.Decline{PeerID: peerID, Diagnosis: smc.DiagMaxConns})
			})
			wantDecline(t, "client", err, smc.DiagMaxConns, true)
			if want := map[bool]int{true: 1}[groupThere]; conns != want {
				t.Errorf("link group %v: %d connections, want %d", groupThere, conns, want)
			}
		}
	})
}

// TestDeviceLostAfterProposal: a client whose device goes down after PROPOSAL says nothing
// before it has the server's ACCEPT, and declines then: DECLINE never follows a message of
// the same side (RFC 7609, appendix C.1).
func TestDeviceLostAfterProposal(t *testing.T) {
	bubble(t, func(t *testing.T) {
		b := newBed(t, bedConfig{})
		err := b.propose(t, func(p scripted) {
			b.ch.SetPort("eth0", false)
			time.Sleep(2 * time.Second)
			b.ch.SetPort("eth0", true) // for TCP; the GIDs come later
			b.ch.SetGIDs("eth0", false)
			_ = p.tc.SetReadDeadline(time.Now().Add(time.Second))
			if n, err := p.tc.Read(make([]byte, 1)); n > 0 || err == nil {
				t.Error("a message follows PROPOSAL")
			}
			p.send(wire.Accept{FirstContact: true, Endpoint: endpointOf(1)})
			as[wire.Decline](p)
		})
		wantDecline(t, "client", err, smc.DiagNoSMCRDev, false)
	})
}
