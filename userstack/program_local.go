// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"smcr/userstack/internal/inside"
)

// CandidateHere implements inside.Programs. No RoCE device is needed: the bytes of
// such a connection never leave the host.
func (s programs) CandidateHere(fd int) error {
	if s.ctx.Err() != nil {
		return ErrStackClosed
	}
	if s.option == nil {
		return ErrNoOption
	}
	return s.option.MarkConnect(fd)
}

// IsLocal implements inside.Programs.
func (s programs) IsLocal(o inside.Owner, fd int, client bool) {
	side := sideServer
	if client {
		side = sideClient
	}
	s.stats.Local(side)
	s.plains.note(cookieOf(fd), plain{owner: o, local: true})
}
