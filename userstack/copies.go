// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"smcr/quota"
	"smcr/smc"
	"smcr/userstack/network"
	"smcr/userstack/rendezvous"
)

// ErrNoAnswer means that a SYN-ACK announced SMC, but what answers PROPOSAL at the other end
// does not speak CLC, or ends the connection, or is silent. It has read PROPOSAL as data. The
// client should connect again, without announcing SMC.
var ErrNoAnswer = rendezvous.ErrNoAnswer

// ErrNotLetGo means that the program of a connection that the stack carries did not get it: the packet that ends its connect() is lost on
// this host. Its TCP sends SYN again.
var ErrNotLetGo = rendezvous.ErrNotLetGo

// errCopied is the reason of connections to an address at which the option of SMC in a SYN-ACK
// means nothing.
var errCopied = errors.New("userstack: the peer, or something on the path, copies the TCP option of SMC into its answer")

func copied() *DeclineError {
	return &DeclineError{Code: smc.DiagCopied, Err: errCopied, uncounted: true}
}

const (
	// copyFirst is how long SMC is not announced to an address after the first time. The time
	// doubles with each further time, up to copyLast.
	copyFirst = time.Minute
	copyLast  = time.Hour
	// copyDoubtful is the first time after ends without an answer, which a server may cause that
	// has no descriptors left, for instance.
	copyDoubtful = 5 * time.Second
	// copyDoubts is how many connections in a row the peer must end without an answer to PROPOSAL. One
	// alone may be that of a host or a stack that has ended.
	copyDoubts = 2
	// maxCopies limits the addresses that are remembered, and maxCopiesUser those of one user.
	// Peers can add some, but no more than programs connect to.
	maxCopies     = 1024
	maxCopiesUser = 128
)

// copyKey names what is remembered. A user has the sockets of the user's connections, and can
// spoil their rendezvous. Behind one address there may be many hosts, one at each port, and who has one of them
// decides what it answers. So what a connection shows is for this port alone, and for the connections of its user.
type copyKey struct {
	uid uint32
	at  netip.AddrPort
}

// copies has the addresses at which the option of SMC in a SYN-ACK means nothing. The zero value
// is ready for use.
//
//	event                             | key, of a user   | then
//	the SYN-ACK has the probe         | address and port | nothing is announced to it for a time
//	data instead of an answer to CLC  | address and port | the same
//	silence instead of it             | address and port | the same
//	the end instead of it             | address and port | the same, from the second in a row on, and
//	                                  |                  | for a shorter time first
//	the time is over                  |                  | the next connection announces SMC
//	an answer to PROPOSAL             | address and port | forgotten
type copies struct {
	mu    sync.Mutex
	at    map[copyKey]*copying
	users quota.Tally[uint32] // of at
}

type copying struct {
	whose  uint32 // see quota.Account, which may say something else later
	doubts int
	pause  time.Duration // 0: nothing is sure
	until  time.Time
}

// portOf returns the key for one port and the connections of a user.
func portOf(uid uint32, remote netip.AddrPort) copyKey {
	return copyKey{uid, netip.AddrPortFrom(remote.Addr().Unmap().WithZone(""), remote.Port())}
}

// known reports whether a connection of a user must not be announced to remote.
func (c *copies) known(now time.Time, uid uint32, remote netip.AddrPort) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.at[portOf(uid, remote)]
	return x != nil && now.Before(x.until)
}

// left returns for how long a connection of a user must not be announced to a port of remote, by what
// its connections have shown.
func (c *copies) left(now time.Time, uid uint32, remote netip.AddrPort) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if x := c.at[portOf(uid, remote)]; x != nil {
		return max(x.until.Sub(now), 0)
	}
	return 0
}

// found records that something copies options for key. If it is not sure, it takes several
// times in a row.
func (c *copies) found(now time.Time, key copyKey, sure bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x := c.at[key]
	if x == nil {
		c.makeRoom(key)
		x = &copying{whose: quota.Account(key.uid)}
		c.at[key] = x
		c.users.Add(x.whose)
	}
	if x.doubts++; !sure && x.doubts < copyDoubts {
		x.until = now
		return
	}
	if now.Before(x.until) {
		return // another connection of the same time has found it
	}
	least := copyDoubtful
	if sure {
		least = copyFirst
	}
	x.pause = min(max(2*x.pause, least), copyLast)
	x.until = now.Add(x.pause)
}

// makeRoom makes room for one more key. If the user's own ones are too many, one of them is
// forgotten; or if those of all are, one of the user with the most. It is the one whose time ends first of those of the host with the most:
// a host that has programs connect to many of its ports displaces what is known of no other. The caller holds mu.
func (c *copies) makeRoom(key copyKey) {
	if c.at == nil {
		c.at = map[copyKey]*copying{}
	}
	who := quota.Account(key.uid)
	if c.users.Of(who) < maxCopiesUser {
		if len(c.at) < maxCopies {
			return
		}
		if u, n := c.users.Most(func(a, b uint32) bool { return a < b }); n > c.users.Of(who) {
			who = u
		}
	}
	var hosts quota.Tally[netip.Addr]
	most := 0
	for k, x := range c.at {
		if x.whose == who {
			h := quota.Host(k.at.Addr())
			hosts.Add(h)
			most = max(most, hosts.Of(h))
		}
	}
	var first copyKey
	for k, x := range c.at {
		if f := c.at[first]; x.whose == who && hosts.Of(quota.Host(k.at.Addr())) == most && (f == nil || x.until.Before(f.until)) {
			first = k
		}
	}
	c.forget(first)
}

// forget forgets a key, if it is there. The caller holds mu.
func (c *copies) forget(key copyKey) {
	if x := c.at[key]; x != nil {
		delete(c.at, key)
		c.users.Remove(x.whose)
	}
}

// all calls each with what is not announced, and for how long yet.
func (c *copies) all(now time.Time, each func(uid uint32, at netip.AddrPort, left time.Duration)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, x := range c.at {
		if left := x.until.Sub(now); left > 0 {
			each(key.uid, key.at, left)
		}
	}
}

// answered records an answer to PROPOSAL on a connection of a user.
func (c *copies) answered(uid uint32, remote netip.AddrPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.at) > 0 {
		c.forget(portOf(uid, remote))
	}
}

// noAnswer records a rendezvous of a user that ended with ErrNoAnswer.
func (c *copies) noAnswer(now time.Time, uid uint32, remote netip.AddrPort, err error) {
	c.found(now, portOf(uid, remote), errors.Is(err, rendezvous.ErrProtocol) || errors.Is(err, os.ErrDeadlineExceeded))
}

// copiedSYN is the reason why the connection tcp of a user, whose peer did not announce SMC, is TCP, if the
// SYN-ACK had a copy of the option; or nil.
func (s *Stack) copiedSYN(uid uint32, tcp *net.TCPConn) (why *DeclineError) {
	if s.opt.marker == nil {
		return nil
	}
	rc, err := tcp.SyscallConn()
	if err != nil {
		return nil
	}
	_ = rc.Control(func(fd uintptr) { // an error means that it is closed
		if s.synAck(uid, int(fd), addrPort(tcp.RemoteAddr())) {
			why = copied()
		}
	})
	return why
}

// synAck tells whether the option in the SYN-ACK of a connected socket of a user is a copy, and remembers
// that.
func (s *Stack) synAck(uid uint32, fd int, remote netip.AddrPort) bool {
	d, ok := s.opt.marker.(network.CopyDetector)
	if !ok || !d.Copied(fd) {
		return false
	}
	s.copies.found(time.Now(), portOf(uid, remote), true)
	return true
}
