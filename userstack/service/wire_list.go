// SPDX-License-Identifier: Apache-2.0

package service

import (
	"io/fs"
	"net"
	"net/netip"
	"path"
	"path/filepath"

	"smcr/internal/cgroup"
	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/divert"
	"smcr/userstack/internal/inside"
)

// list is inside.Others: the sockets of attached cgroups whose connections are not taken, which are plain TCP, and those that
// listen. A connection is not listed if why it is TCP is not known: it is older than the attachment, for example.
func (w *boundary) list() func(cookie, cgroup uint64, c nl.Connection) (inside.TCPSocket, bool) {
	within, taken, own := w.within(), w.d.Taken(), ownAddrs()
	return func(cookie, cgroup uint64, c nl.Connection) (s inside.TCPSocket, ok bool) {
		does, attached := within[cgroup]
		s.Owner.UID = c.UID
		switch {
		case !attached || taken[cookie]:
			return s, false
		case c.State == smc.StateListen:
			return s, does.Accept
		}
		why, ok := w.d.Plain(cookie)
		if a := c.Remote.Addr(); !ok && (a.IsLoopback() || own[a]) {
			why, ok = smc.DiagLocal, true
		}
		s.Fallback.Reason = uint32(why)
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
	var walk func(dir string, does divert.Does)
	walk = func(dir string, does divert.Does) {
		_ = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() { // gone meanwhile
				return nil
			}
			if inner, ok := roots[p]; ok && p != dir {
				walk(p, inner)
				return filepath.SkipDir
			}
			if id, err := cgroup.ID(p); err == nil {
				all[id] = does
			}
			return nil
		})
	}
	for dir, does := range roots {
		walk(dir, does)
	}
	return all
}

// ownAddrs returns the addresses of this host.
func ownAddrs() map[netip.Addr]bool {
	own := map[netip.Addr]bool{}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return own
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			own[p.Addr().Unmap()] = true
		}
	}
	return own
}
