// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"context"
	"net/netip"

	"smcr/userstack/broker"
	"smcr/userstack/internal/connector"
	"smcr/userstack/network"
)

// programSockets is what a service knows of the TCP sockets of programs.
type programSockets struct {
	claims    claims
	listeners listeners
}

// handler is the service as launchers see it.
type handler struct{ *Service }

var (
	_ broker.Adopter = handler{}
	_ broker.Refuser = handler{}
)

// Adopt implements broker.Adopter.
func (s handler) Adopt(_ context.Context, l *broker.Launcher, sock *broker.Descriptor) error {
	k := s.sockets.listeners.keeper
	if k == nil {
		return errNotMarked
	}
	return sock.Control(func(fd int) error {
		if err := s.checkSocket(fd, toListen); err != nil {
			return err
		}
		if marked, err := k.Listens(fd); err != nil || !marked {
			return cmp.Or(err, errNotMarked)
		}
		if _, err := s.sockets.listeners.add(l, fd); err != nil {
			return err
		}
		s.sockets.listeners.renewed()
		if s.joinsListener(l, fd) {
			s.local.listens(fd, l.UID)
		}
		return nil
	})
}

// Refused implements broker.Refuser.
func (s handler) Refused(sock *broker.Descriptor) {
	if k := s.sockets.listeners.keeper; k != nil {
		_ = sock.Control(func(fd int) error {
			_, err := k.Taken(network.Cookie(fd))
			return err
		})
	}
}

// anew leaves the connection of f to the launcher, which makes it again over TCP. Packets to this
// address of the host lead elsewhere, and the program must not speak CLC there: the gate stays
// closed, and ends with the first connection.
func (s *Service) anew(c *broker.Conn, sock *broker.Descriptor, f *localConn) {
	s.local.finish(f, outcomeClosed)
	s.staysTCP(c, sock, true, errNotHere)
	_ = sock.Control(connector.Disconnect)
	s.withdraw(sock)
	_ = sock.Close()
	_ = c.NotCandidate(errNotHere.Error())
}

// again has the launcher connect anew, over TCP, after a rendezvous that has ended with err, if
// the server does not speak CLC: it has taken PROPOSAL for data. The program has sent nothing.
// again returns false after another err.
func again(s *Service, c *broker.Conn, sock *broker.Descriptor, remote netip.AddrPort, tcp *sharedTCP, restore func(), err error) bool {
	why := s.programs.NoAnswer(c.Launcher().UID, remote, err)
	if why == nil {
		return false
	}
	restore()
	_ = tcp.Close()
	s.staysTCP(c, sock, true, why)
	_ = c.Again(why.Error())
	return true
}
