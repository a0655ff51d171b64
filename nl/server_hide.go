// SPDX-License-Identifier: Apache-2.0

package nl

import "smcr/smc"

// The answers of a Server depend on the peer. A peer that may change the stack sees
// everything. Other peers see all rows, but not these fields:
//
//	connection of another user | its process, as with ss(8); its alert token
//	link group                 | the peer ID
//	link                       | the queue pair numbers of both ends
//	cgroup of another user     | what became of its connections
//
// What was learnt with connections of another user, they do not see at all: with whom somebody has connections is
// shown while there are any.
//
// Alert token, peer ID and queue pair numbers are part of CLC messages and packets. They
// help an attacker to forge these.

func (s *Server) hideConn(p Peer, c *Connection) {
	if p.UID == c.UID || s.cfg.Authorize(p) {
		return
	}
	c.PID, c.Command = 0, ""
	if c.Info != nil {
		info := *c.Info // c.Info belongs to the stack
		info.Token = 0
		c.Info = &info
	}
}

func (s *Server) hideGroup(p Peer, g *LinkGroup) {
	if !s.cfg.Authorize(p) {
		g.PeerID = smc.PeerID{}
	}
}

func (s *Server) hideLink(p Peer, l *Link) {
	if !s.cfg.Authorize(p) {
		l.QPN, l.PeerQPN = 0, 0
	}
}

// concerns reports whether a peer may see what was learnt.
func (s *Server) concerns(p Peer, l *Learnt) bool {
	return l.Everyone || l.UID == p.UID || s.cfg.Authorize(p)
}

func (s *Server) hideAttachment(p Peer, a *Attachment) {
	if p.UID != a.UID && !s.cfg.Authorize(p) {
		a.Outcomes = Outcomes{}
	}
}
