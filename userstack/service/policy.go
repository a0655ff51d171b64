// SPDX-License-Identifier: Apache-2.0

package service

import (
	"errors"
	"net/netip"
	"slices"
	"sync/atomic"

	"smcr/userstack/broker"
	"smcr/userstack/internal/bounded"
	"smcr/userstack/network"
)

// A LocalJoin is an entry of the policy which programs of this machine are joined although
// their launchers did not choose it. It matches if all that it names match. Both programs of
// a connection must match an entry, or have chosen it themselves.
//
// The name of a program is what its launcher says. A launcher may lie about it, and gains
// nothing: it may also choose pairs without any policy.
type LocalJoin struct {
	Program string       // base name of the program; "": any
	Port    uint16       // of the server; 0: any
	Prefix  netip.Prefix // contains the address of the server; the zero value: any
}

// program reports whether an entry can match connections of a program.
func (x *LocalJoin) program(name string) bool { return x.Program == "" || x.Program == name }

// listener reports whether an entry can match connections of a program with a port. The kernel
// has not chosen port 0 yet.
func (x *LocalJoin) listener(name string, port uint16) bool {
	return x.program(name) && (x.Port == 0 || x.Port == port || port == 0)
}

// matches reports whether an entry matches a connection of a program with a server.
func (x *LocalJoin) matches(name string, server netip.AddrPort) bool {
	return x.program(name) && (x.Port == 0 || x.Port == server.Port()) &&
		(!x.Prefix.IsValid() || x.Prefix.Contains(server.Addr().Unmap().WithZone("")))
}

// localPolicy is the policy in use. It is replaced as a whole.
type localPolicy struct {
	entries atomic.Pointer[[]LocalJoin]
}

// any reports whether f holds for an entry.
func (p *localPolicy) any(f func(*LocalJoin) bool) bool {
	list := p.entries.Load()
	if list == nil {
		return false
	}
	for i := range *list {
		if f(&(*list)[i]) {
			return true
		}
	}
	return false
}

// SetLocalJoin replaces the policy which programs of this machine are joined although their
// launchers did not choose it. None is the default. A new entry holds for programs whose
// launchers start later and for sockets that listen later. An entry that is gone holds for no
// new connection.
func (s *Service) SetLocalJoin(list []LocalJoin) {
	list = slices.Clone(list)
	s.policy.entries.Store(&list)
}

// LocalJoin returns the policy in use, which the caller must not change.
func (s *Service) LocalJoin() []LocalJoin {
	if list := s.policy.entries.Load(); list != nil {
		return *list
	}
	return nil
}

// mayJoin reports whether connections of a launcher may be joined at all.
func (s *Service) mayJoin(l *broker.Launcher) bool {
	name := ownerOf(l).Command
	return !s.cfg.NoLocal && (l.Chosen || s.policy.any(func(x *LocalJoin) bool { return x.program(name) }))
}

// joinsListener reports whether connections of a listening socket may be joined. Their
// addresses are known when they are accepted.
func (s *Service) joinsListener(l *broker.Launcher, fd int) bool {
	if !l.Local || l.Chosen {
		return l.Local
	}
	ap, err := socketAddr(bounded.Sockname(fd))
	name := ownerOf(l).Command
	return err == nil && s.policy.any(func(x *LocalJoin) bool { return x.listener(name, ap.Port()) })
}

// joins reports whether a launcher's connection with a server may be joined.
func (s *Service) joins(l *broker.Launcher, server netip.AddrPort) bool {
	if !l.Local || l.Chosen {
		return l.Local
	}
	name := ownerOf(l).Command
	return s.policy.any(func(x *LocalJoin) bool { return x.matches(name, server) })
}

// apart is candidate for a connection that is not joined: if the peer is a program of this
// host, it stays TCP.
func (s *Service) apart(c *broker.Conn, fd int, local netip.Addr, remote netip.AddrPort) error {
	if s.machine.has(remote.Addr()) {
		return errNotLocal
	}
	if err := s.programs.Candidate(ownerOf(c.Launcher()), local, remote.Addr(), fd); !errors.Is(err, network.ErrThisHost) {
		return err
	}
	return errNotLocal
}

// acceptor returns the launcher that claims an accepted connection: l, or one that has not
// chosen pairs if the policy does not join this connection.
func (s *Service) acceptor(l *broker.Launcher, fd int) *broker.Launcher {
	server, err := socketAddr(bounded.Sockname(fd))
	if err == nil && s.joins(l, server) {
		return l
	}
	return &broker.Launcher{PID: l.PID, UID: l.UID, GID: l.GID, Command: l.Command}
}
