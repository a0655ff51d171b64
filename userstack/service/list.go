// SPDX-License-Identifier: Apache-2.0

package service

import (
	"io/fs"
	"net/netip"
	"path"
	"path/filepath"
	"slices"

	"smcr/internal/cgroup"
	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/divert"
	"smcr/userstack/internal/inside"
)

// list is inside.Others: the sockets of attached cgroups whose connections are not taken, which are plain TCP, those that are being
// decided, and those that listen. A listening socket that a program was started with, and its connections, are that program's. A connection is not listed if why it is TCP is not known: it is older than the attachment, for example.
func (w *boundary) list() func(cookie, cgroup uint64, c nl.Connection) (inside.TCPSocket, bool) {
	undecided := w.deciding.clients()
	within, taken, listeners := w.within(), w.d.Taken(), w.d.Listeners()
	plains, err := w.d.Plains()
	if err != nil {
		w.s.log.Debug("some TCP connections are not listed", "err", err)
	}
	var own []netip.Addr
	if l := w.s.locator(); l != nil {
		if own, err = l.Addresses(); err != nil {
			w.s.log.Debug("connections within the host are not listed", "err", err)
		}
	}
	return func(cookie, cgroup uint64, c nl.Connection) (s inside.TCPSocket, ok bool) {
		does, attached := within[cgroup]
		s.Owner.UID = c.UID
		if undecided[cookie] {
			s.Undecided = true
			return s, true
		}
		if taken[cookie] {
			return s, false
		}
		if c.State == smc.StateListen {
			if of, ok := listeners[cookie]; ok { // it counts to the program that was started with it
				s.Owner.UID, does = of.UID, within[of.Cgroup]
			}
			return s, does.Accept
		}
		p, ok := plains[cookie]
		why := p.Why
		if ok { // it may be of such a listening socket
			_, counts := within[p.Cgroup]
			attached, s.Owner.UID = attached || counts, p.UID
		}
		if !attached {
			return s, false
		}
		if a := c.Remote.Addr(); !ok && (a.IsLoopback() || slices.Contains(own, a)) {
			why, ok = smc.DiagLocal, true
		}
		s.Fallback = nl.ConnFallback{Reason: uint32(why), Peer: uint32(p.PeerWhy)}
		return s, ok
	}
}

// within returns the numbers of the attached cgroups and of those below them, with what the innermost attached one does.
func (w *boundary) within() map[uint64]divert.Does {
	all := map[uint64]divert.Does{}
	top, roots := w.top, map[string]divert.Does{}
	for _, e := range w.attached.Entries() {
		if e.Cgroup != 0 {
			roots[path.Join(top, e.Path)] = e.Does
		}
	}
	if w.wholeDir != "" {
		roots[w.wholeDir] = divert.Does{Connect: true, Accept: true}
	}
	for dir, does := range roots {
		_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() { // gone meanwhile
				return nil
			}
			if _, inner := roots[p]; inner && p != dir {
				return filepath.SkipDir // it has its own turn
			}
			if id, err := cgroup.ID(p); err == nil {
				all[id] = does
			}
			return nil
		})
	}
	return all
}
