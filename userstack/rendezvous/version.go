// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"smcr/smc"
	"smcr/userstack/wire"
)

// version is what the CLC messages of SMC version 1 and of version 2 do differently. A
// value belongs to one rendezvous, and keeps what was agreed on.
type version interface {
	number() uint8

	// propose adds to a client's PROPOSAL what the version offers. If it cannot be
	// offered, PROPOSAL says so, and propose returns why.
	propose(p *wire.Proposal, h *Host) *Refusal
	// accepted checks ACCEPT. With askPath the client has to find out whether a router
	// is on the way to the server's GID, for path.
	accepted(a *answer) (askPath bool, no *Refusal)
	path(a *answer, routed bool) *Refusal

	// choose takes the server's choice from a client's PROPOSAL, or returns why the
	// version cannot be used.
	choose(p *wire.Proposal, h *Host) *Refusal
	// port returns which RoCE port PROPOSAL names. In version 2 the MAC is zero.
	port(p *wire.Proposal) (smc.GID, smc.MAC)
	// confirmed checks CONFIRM of a first contact.
	confirmed(a *answer) *Refusal

	// accept and confirm make the messages on an existing link group, where local is this
	// end of the connection. acceptFirst and confirmFirst make those of a first contact.
	accept(local wire.Endpoint) wire.CLC
	acceptFirst(made GroupMade) wire.CLC
	confirm(local wire.Endpoint) wire.CLC
	confirmFirst(made GroupMade) wire.CLC
	decline(d wire.Decline) wire.Decline

	// terms returns a copy of what was agreed on: nil in version 1.
	terms() *Terms
}

// answer is ACCEPT or CONFIRM of either version.
type answer struct {
	wire.Endpoint
	version uint8
	first   bool // ACCEPT: a first contact; a server knows itself, so CONFIRM is not asked
	eid     wire.EID
	ext     *wire.FirstContactExt // version 2, first contact
}

// answerOf returns nil for another message.
func answerOf(m wire.CLC) *answer {
	switch m := m.(type) {
	case wire.Accept:
		return &answer{version: wire.Version1, Endpoint: m.Endpoint, first: m.FirstContact}
	case wire.Confirm:
		return &answer{version: wire.Version1, Endpoint: m.Endpoint}
	case wire.AcceptV2:
		return &answer{version: wire.Version2, Endpoint: m.Endpoint, first: m.FirstContact != nil, eid: m.EID, ext: m.FirstContact}
	case wire.ConfirmV2:
		return &answer{version: wire.Version2, Endpoint: m.Endpoint, eid: m.EID, ext: m.FirstContact}
	}
	return nil
}
