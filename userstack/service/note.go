// SPDX-License-Identifier: Apache-2.0

package service

import "smcr/userstack/broker"

var _ broker.Noter = (*Service)(nil)

// Noted implements broker.Noter.
func (s *Service) Noted(l *broker.Launcher, notes []broker.Note) {
	o := ownerOf(l)
	for _, n := range notes {
		s.programs.LeftToTCP(o, n.Cookie, n.Client, n.Reason == broker.NoteShort)
	}
}
