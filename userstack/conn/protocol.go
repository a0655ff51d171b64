// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"smcr/smc"
)

// Protocol is a connection as its link group sees it: what the group reports to the
// connection. The program's side is [Conn].
type Protocol struct{ core }

// New returns a connection in smc.StateInit. mem is its RMB element, which the peer does
// not know yet; eye says whether it gets an eye catcher. sendBuf is the size of the send buffer and chunk the
// least size of its chunks, in bytes; token is the local alert token, not 0.
func New(cfg *Config, g Group, token uint32, mem []byte, eye EyeCatcher, sendBuf, chunk int) Conn {
	c := Conn{Protocol{core{cfg: cfg, group: g, token: token, state: smc.StateInit}}}
	p := &c.p
	p.in.initialize(mem, eye)
	p.out.buf.size, p.out.buf.chunk = sendBuf, chunkFor(sendBuf, chunk)
	return c
}

// Remote describes the peer's side of a connection.
type Remote struct {
	Token uint32 // the alert token of the peer, not 0
	Size  int    // of its RMB element in bytes
	Eye   bool   // the element begins with an eye catcher
	// LinkGone: CONFIRM named a link that was removed while it was under way. The
	// peer has to move the connection to another one.
	LinkGone bool
	// Redundant: the link group has more than one active link.
	Redundant bool
}

// Establish opens the connection. What the peer has sent before is processed now.
func (p *Protocol) Establish(r Remote) {
	now := p.group.Now()
	p.peer, p.state = r.Token, smc.StateActive
	p.out.elem = newRing(r.Size, r.Eye)
	if r.Redundant {
		p.SetRedundant()
	}
	if p.peerMove.missing {
		p.start(&p.peerMove.timer, now.Add(validateWait))
	}
	if r.LinkGone {
		// Linux does not move a connection that it has not opened yet when the
		// link goes, and could never use it.
		p.start(&p.peerMove.arrival, now.Add(peerMoveWait))
	}
	p.processDeferred(now)
	p.Transmit()
}
