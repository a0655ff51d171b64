// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"testing"

	"smcr/userstack/wire"
)

// TestUDPPorts: in a first contact, two stacks of this module tell each other the UDP port
// of their queue pair. To another peer they tell nothing, and take nothing for a port that
// such a peer sends.
func TestUDPPorts(t *testing.T) {
	const serverPort, clientPort = 61001, 61002
	foreignClient := func(p *wire.Proposal) { clear(p.Growth[52-40:][:3]) }
	foreignServer := func(x *wire.FirstContactExt) { x.Vendor = 61003 }
	for _, tt := range []struct {
		name                string
		client, server      uint8 // release
		change              func(p *wire.Proposal)
		answer              func(x *wire.FirstContactExt)
		accepted, confirmed uint16 // what the messages have
		atClient, atServer  uint16 // what each side knows of the other
	}{
		{name: "both", client: 1, server: 1, accepted: serverPort, confirmed: clientPort, atClient: serverPort, atServer: clientPort},
		{name: "another client", client: 1, server: 1, change: foreignClient},
		{name: "another server", client: 1, server: 1, answer: foreignServer},
		{name: "client of release 0", client: 0, server: 1},
		{name: "server of release 0", client: 1, server: 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host := func(release uint8) *Host {
				h := testHost()
				h.Release = release
				return &h
			}
			client, server := &version2{}, &version2{}
			p := testProposal(true, noV2)
			if no := client.propose(&p, host(tt.client)); no != nil {
				t.Fatal(no)
			}
			if tt.change != nil {
				tt.change(&p)
			}
			if no := server.choose(&p, host(tt.server)); no != nil {
				t.Fatal(no)
			}
			accept := server.acceptFirst(GroupMade{testEndpoint(), serverPort}).(wire.AcceptV2)
			if tt.answer != nil {
				tt.answer(accept.FirstContact)
			} else if accept.FirstContact.Vendor != wire.VendorUDPPort(tt.accepted) {
				t.Errorf("ACCEPT has %d, want %d", accept.FirstContact.Vendor, wire.VendorUDPPort(tt.accepted))
			}
			if _, no := client.accepted(answerOf(accept)); no != nil {
				t.Fatal(no)
			}
			confirm := client.confirmFirst(GroupMade{testEndpoint(), clientPort}).(wire.ConfirmV2)
			if confirm.FirstContact.Vendor != wire.VendorUDPPort(tt.confirmed) {
				t.Errorf("CONFIRM has %d, want %d", confirm.FirstContact.Vendor, wire.VendorUDPPort(tt.confirmed))
			}
			if !server.tellPort {
				confirm.FirstContact.Vendor = wire.VendorUDPPort(clientPort) // another client may send anything
			}
			if no := server.confirmed(answerOf(confirm)); no != nil {
				t.Fatal(no)
			}
			if got := client.terms().PeerUDPPort(); got != tt.atClient {
				t.Errorf("the client knows port %d, want %d", got, tt.atClient)
			}
			if got := server.terms().PeerUDPPort(); got != tt.atServer {
				t.Errorf("the server knows port %d, want %d", got, tt.atServer)
			}
		})
	}
}
