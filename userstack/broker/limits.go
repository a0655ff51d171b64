// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"fmt"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"smcr/quota"
	"smcr/userstack/internal/bounded"
)

const (
	// DefaultMaxSessions is how many sessions one user other than root may have.
	DefaultMaxSessions = 256

	// sessionCost is the part of its user's quota that a session takes, in descriptors:
	// its socket, and one that has just come with a message.
	sessionCost = 2
	// connCost is the part that a connection takes: the TCP socket, the stack's
	// duplicate of it, the end of the pair, and one more while an end is passed on.
	connCost = 4
	// lastCost is the part that a connection keeps after the end of the program's side,
	// while the stack ends the connection with the peer.
	lastCost = 1
	// maxRequests bounds the Listen, SetOption and GetOption of one session that
	// are in progress. The next one, and what follows it, waits.
	maxRequests = 64
	// maxDeclining bounds the accepted connections of all users that are being declined
	// because there is no quota for them. They use descriptors that are reserved for
	// root. maxDecliningUser bounds those of one user: a peer that does not answer keeps a
	// place for declineTime, and who has no place does not tell the peer, so its connections
	// with peers that speak SMC break. If all have places, a user without one gets that of the
	// user with the most, whose decline ends.
	maxDeclining     = 8
	maxDecliningUser = 2
	// maxClosing bounds the threads that close descriptors that are not sockets, for
	// all users together.
	maxClosing = 64
	// declineTime bounds a Decline. A launcher waits for twice as long.
	declineTime = 5 * time.Second
)

// A Decliner is a [Handler] that can tell the peer of an accepted connection
// that it stays TCP.
type Decliner interface {
	// Decline tells the peer, if it has announced SMC, that the connection stays TCP
	// because of why. Then it calls c.NotCandidate, unless sock cannot be used any
	// more. Decline must close sock. It may use three descriptors at a time, sock
	// included.
	Decline(ctx context.Context, c *Conn, sock *Descriptor, why error)
}

func (s *Server) prepare() {
	s.once.Do(func() {
		s.warnings = quota.NewLog(s.log())
		s.declining = make(map[uint32][]*declining)
		s.sessions = make(map[uint32]int)
		s.notClosed = make(map[uint32][][]int)
		s.closing = make(chan struct{}, maxClosing)
		s.handedOver, s.handOver = context.WithCancel(context.Background())
	})
}

// admit takes the cost of a session from the quota of the user at the other end of c, which
// leave gives back. If the user cannot have a session, admit sends the reason and closes c.
func (s *Server) admit(c *net.UnixConn) (*Launcher, error) {
	l, err := peer(c)
	if err == nil {
		if err = s.enter(l.UID); err == nil {
			return l, nil
		}
		// This does not wait for the hello, so it takes no time. The socket buffer
		// always has room for one message.
		m := Message{Type: TypeWelcome, Size: Version, Errno: int32(errnoOf(err)), Text: clip(err.Error())}
		_ = newTransport(c).send(&m, -1)
	}
	bounded.RefuseQueue(c)
	return nil, err
}

// enter counts a session of user uid. Errors: unix.EUSERS if the user has too many sessions,
// and those of Quota.
func (s *Server) enter(uid uint32) error {
	uid = quota.Account(uid)
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

// closeAndLeave closes the descriptors of a session that are not sockets, and calls leave
// after that. It does not wait, because a file system may delay the close without limit. At
// most one thread for each user, and maxClosing threads in all, wait in such a close.
func (s *Server) closeAndLeave(uid uint32, t *transport) {
	uid = quota.Account(uid)
	notSockets := t.notSockets
	if len(notSockets) == 0 {
		s.leave(uid)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notClosed[uid] = append(s.notClosed[uid], notSockets)
	if len(s.notClosed[uid]) == 1 {
		go s.closeNotSockets(uid) // No guard: it only closes descriptors.
	}
}

// closeNotSockets closes the descriptors in s.notClosed of a user, session by session.
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

// leave gives back what enter took.
func (s *Server) leave(uid uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Quota.Give(uid, sessionCost)
	if s.sessions[uid]--; s.sessions[uid] == 0 {
		delete(s.sessions, uid)
	}
}

// Retain keeps a part of the connection's quota until release is called, even after the
// handler has returned. It is for the time in which the stack still has the TCP socket.
func (c *Conn) Retain() (release func()) {
	n := min(c.taken.Load(), lastCost)
	c.taken.Add(-n)
	return func() { c.ss.s.Quota.Give(c.ss.l.UID, int(n)) }
}

// A declining is a connection of a user that is being declined, or waits for that.
type declining struct {
	ctx    context.Context
	cancel context.CancelFunc
	over   chan struct{} // closed at its end
	after  *declining    // it has the place when this one is over; or nil
}

// decline takes a place for a connection of a user that is being declined, which declined gives
// back. It returns nil if there is none.
func (s *Server) decline(ctx context.Context, uid uint32) *declining {
	uid = quota.Account(uid)
	s.mu.Lock()
	defer s.mu.Unlock()
	all, most := 0, uid
	for u, ds := range s.declining {
		all += len(ds)
		if len(ds) > len(s.declining[most]) || len(ds) == len(s.declining[most]) && u < most {
			most = u
		}
	}
	own := len(s.declining[uid])
	if own >= maxDecliningUser || all >= maxDeclining && len(s.declining[most]) <= own+1 {
		return nil
	}
	d := &declining{over: make(chan struct{})}
	d.ctx, d.cancel = context.WithCancel(ctx)
	if all >= maxDeclining {
		d.after = s.declining[most][0] // the oldest
		s.declining[most] = s.declining[most][1:]
		d.after.cancel()
	}
	s.declining[uid] = append(s.declining[uid], d)
	return d
}

// wait waits until the one is over whose place d has. That one has been canceled.
func (d *declining) wait() {
	if d.after != nil {
		<-d.after.over
		d.after = nil
	}
}

func (s *Server) declined(uid uint32, d *declining) {
	uid = quota.Account(uid)
	s.mu.Lock()
	defer s.mu.Unlock()
	d.cancel()
	close(d.over)
	if i := slices.Index(s.declining[uid], d); i >= 0 { // -1: another one has its place
		s.declining[uid] = slices.Delete(s.declining[uid], i, i+1)
	}
	if len(s.declining[uid]) == 0 {
		delete(s.declining, uid)
	}
}

// refuse leaves a connection to TCP because there is no quota for it.
func (ss *session) refuse(c *Conn, m Message, d *Descriptor, why error) {
	if dec, ok := ss.s.Handler.(Decliner); ok && m.Type == TypeAccept {
		if place := ss.s.decline(c.ctx, ss.l.UID); place != nil {
			ss.wg.Go(func() {
				defer ss.s.declined(ss.l.UID, place)
				defer c.end()
				place.wait()
				ctx, cancel := context.WithTimeout(place.ctx, declineTime)
				defer cancel()
				if ss.s.guarded("the refusal of a connection", func() { dec.Decline(ctx, c, d, why) }) != nil {
					_ = d.Close()
				}
			})
			return
		}
	}
	if r, ok := ss.s.Handler.(Refuser); ok && m.Type == TypeAccept {
		r.Refused(d)
	}
	_ = d.Close()
	defer c.end()
	_ = c.notLookedAt(m, why)
}

// notLookedAt sends NotCandidate for a socket that the service has not looked at. A socket
// that the program connects is unchanged. For an accepted socket the message has an Errno:
// the launcher must find out whether the connection can be used.
func (c *Conn) notLookedAt(m Message, why error) error {
	not := Message{Type: TypeNotCandidate, Text: clip(why.Error())}
	if m.Type == TypeAccept {
		not.Errno = int32(errnoOf(why))
	}
	return c.send(&not)
}

// descriptorLost answers a message whose descriptor did not arrive: see errDescriptorLost.
func (ss *session) descriptorLost(m Message) {
	err := fmt.Errorf("the stack could not receive a descriptor, it may have too many open files: %w", unix.EMFILE)
	ss.mu.Lock()
	c := ss.conns[m.Conn]
	ss.mu.Unlock()
	switch {
	case m.Type == TypeListen:
		ss.result(m.Seq, nil, err)
	case m.Type == TypeAttach && c != nil && !c.pairCame.Swap(true):
		// The data that the program wrote into the pair cannot be read any more: the
		// connection must be reset.
		c.cancel(err)
	case m.Type != TypeAttach && c == nil && m.Conn != 0:
		c = &Conn{ss: ss, id: m.Conn}
		if c.notLookedAt(m, err) == nil {
			ss.sendOrDrop(&Message{Type: TypeClosed, Conn: m.Conn})
		}
	}
}
