// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"smcr/quota"
)

const (
	// DefaultMaxSessions is how many sessions one user other than root may have.
	DefaultMaxSessions = 256

	// sessionCost is what a session takes of its user's quota, in descriptors: its
	// socket, and one that has just come with a message.
	sessionCost = 2
	// connCost is what a connection takes: the TCP socket, the stack's duplicate of
	// it, the pair's end and one more while it changes hands.
	connCost = 4
	// lastCost is what is left of that when the program's side is over, while the
	// stack ends the connection with the peer.
	lastCost = 1
	// maxRequests bounds the Listen, SetOption and GetOption of one session that
	// are in progress. The next one, and what follows it, waits.
	maxRequests = 64
	// maxDeclining bounds the accepted connections, of all users, that are being
	// declined because there is no quota for them. They take of what is kept for
	// root.
	maxDeclining = 8
	// maxClosing bounds the descriptors, of all users, that are no sockets and are
	// being closed.
	maxClosing = 64
	// declineTime bounds a Decline. A launcher waits for twice as long.
	declineTime = 5 * time.Second
)

// A Decliner is a [Handler] that can tell the peer of an accepted connection
// that it stays TCP.
type Decliner interface {
	// Decline does so for why, if the peer has announced SMC, then calls
	// NotCandidate, or nothing if sock is of no use any more. sock belongs to
	// Decline. It takes three descriptors at most at a time, sock included.
	Decline(ctx context.Context, c *Conn, sock *Descriptor, why error)
}

func (s *Server) prepare() {
	s.once.Do(func() {
		s.warnings = quota.NewLog(s.log())
		s.declining = make(chan struct{}, maxDeclining)
		s.sessions = make(map[uint32]int)
		s.notClosed = make(map[uint32][][]int)
		s.closing = make(chan struct{}, maxClosing)
	})
}

// admit takes what a session costs from the quota of who is at the other end of
// c, until leave. Whoever cannot have one is told why, and c is closed.
func (s *Server) admit(c *net.UnixConn) (*Launcher, error) {
	l, err := peer(c)
	if err == nil {
		if err = s.enter(l.UID); err == nil {
			return l, nil
		}
		// Before its hello, so that this takes no time. There is room for one
		// message in any case.
		m := Message{Type: TypeWelcome, Size: Version, Errno: int32(errnoOf(err)), Text: clip(err.Error())}
		_ = newTransport(c).send(&m, -1)
	}
	_ = c.Close()
	return nil, err
}

func (s *Server) enter(uid uint32) error {
	most := s.MaxSessions
	if most <= 0 {
		most = DefaultMaxSessions
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.sessions[uid]; uid != 0 && n >= most {
		return fmt.Errorf("user %d has %d of at most %d sessions with the stack, see --user-sessions of 'smcr serve': %w", uid, n, most, unix.EUSERS)
	}
	if err := s.Quota.Take(uid, sessionCost); err != nil {
		return err
	}
	s.sessions[uid]++
	return nil
}

// bury gives back what a session took once the descriptors are closed that came
// in it and are no sockets: their file system may never let go. Nobody waits for that, and at most one thread for each user, and
// maxClosing in all, are in it.
func (s *Server) closeAndLeave(uid uint32, t *transport) {
	notSockets := t.notSockets
	if len(notSockets) == 0 {
		s.leave(uid)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notClosed[uid] = append(s.notClosed[uid], notSockets)
	if len(s.notClosed[uid]) == 1 {
		go s.closeNotSockets(uid)
	}
}

// closeBuried closes what a user's sessions left behind, one after the other.
func (s *Server) closeNotSockets(uid uint32) {
	s.closing <- struct{}{}
	defer func() { <-s.closing }()
	for {
		s.mu.Lock()
		notSockets := s.notClosed[uid][0]
		s.mu.Unlock()
		for _, fd := range notSockets {
			_ = unix.Close(fd)
		}
		s.leave(uid)
		s.mu.Lock()
		s.notClosed[uid] = s.notClosed[uid][1:]
		over := len(s.notClosed[uid]) == 0
		if over {
			delete(s.notClosed, uid)
		}
		s.mu.Unlock()
		if over {
			return
		}
	}
}

func (s *Server) leave(uid uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Quota.Give(uid, sessionCost)
	if s.sessions[uid]--; s.sessions[uid] == 0 {
		delete(s.sessions, uid)
	}
}

// Retain keeps a part of what the connection takes of its user's quota beyond the
// handler's return, until release is called: the stack still has its TCP socket.
func (c *Conn) Retain() (release func()) {
	n := min(c.taken.Load(), lastCost)
	c.taken.Add(-n)
	return func() { c.ss.s.Quota.Give(c.ss.l.UID, int(n)) }
}

// refuse leaves a connection to TCP for which there is no quota.
func (ss *session) refuse(c *Conn, m Message, d *Descriptor, why error) {
	if dec, ok := ss.s.Handler.(Decliner); ok && m.Type == TypeAccept {
		select {
		case ss.s.declining <- struct{}{}:
			ss.wg.Go(func() {
				defer func() { <-ss.s.declining }()
				defer c.end()
				ctx, cancel := context.WithTimeout(c.ctx, declineTime)
				defer cancel()
				dec.Decline(ctx, c, d, why)
			})
			return
		default:
		}
	}
	_ = d.Close()
	defer c.end()
	_ = c.notLookedAt(m, why)
}

// unseen is NotCandidate for a socket that was not looked at. If a program
// connects it, that is all; of one that it accepted the launcher has to find out
// whether it is of any use.
func (c *Conn) notLookedAt(m Message, why error) error {
	not := Message{Type: TypeNotCandidate, Text: clip(why.Error())}
	if m.Type == TypeAccept {
		not.Errno = int32(errnoOf(why))
	}
	return c.send(&not)
}

// lost answers a message whose descriptor did not arrive: see errDescriptorLost.
func (ss *session) descriptorLost(m Message) {
	err := fmt.Errorf("the stack could not receive a descriptor, it may have too many open files: %w", unix.EMFILE)
	ss.mu.Lock()
	c := ss.conns[m.Conn]
	ss.mu.Unlock()
	switch {
	case m.Type == TypeListen:
		ss.result(m.Seq, nil, err)
	case m.Type == TypeAttach && c != nil && !c.pairCame.Swap(true):
		// What the program wrote into the pair is gone: the connection is reset.
		c.cancel(err)
	case m.Type != TypeAttach && c == nil && m.Conn != 0:
		c = &Conn{ss: ss, id: m.Conn}
		if c.notLookedAt(m, err) == nil {
			ss.sendOrDrop(&Message{Type: TypeClosed, Conn: m.Conn})
		}
	}
}
