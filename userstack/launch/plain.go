// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"encoding/binary"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"smcr/smc"
	"smcr/userstack/wire"
)

// A stack that ends leaves connections behind whose peers were promised SMC: in
// the accept queue, in the TCP handshake, in the CLC handshake. Such a peer sends
// a CLC PROPOSAL before anything else. The launcher answers it with a DECLINE,
// upon which the same connection is plain TCP on both ends (RFC 7609, section
// 3.2, and appendix A.2.5). Nobody can say any more what the SYN-ACK promised, so
// what the peer sends first has to.

// proposalTime is how long after its connection a peer that was promised SMC has
// to begin with its PROPOSAL, which it sends at once. Others have their
// connection by then in any case.
const proposalTime = time.Second

// unasked settles an accepted connection of which no service says what it is.
// doubt tells that one was to.
func (s *supervisor) withoutService(a *accepted, doubt bool) bool {
	s.stats.tcp(ReasonNoService)
	return s.plain(a, doubt)
}

// plain makes an accepted connection plain TCP of which no service says that the
// peer uses SMC. With doubt the peer may have been promised SMC just now. It
// returns false if the connection is unusable.
func (s *supervisor) plain(a *accepted, doubt bool) bool {
	sock := a.sock
	if !doubt && !s.sessions.everEnded() || a.readSYN() != synWith {
		return true
	}
	wait := time.Duration(0)
	if age, sent := handshake(sock); doubt || s.sessions.doubtful(sent) {
		wait = max(0, proposalTime-age)
	}
	declined, err := s.decline(sock, wait)
	if err != nil {
		s.log.Debug("connection dropped", "err", err)
		return false
	}
	if declined {
		s.log.Debug("declined SMC in place of the stack")
	}
	return true
}

// handshake tells the age of an accepted connection on which this end has sent
// nothing, and when its SYN-ACK was sent at the earliest.
func handshake(sock int) (age time.Duration, sent time.Time) {
	info, err := unix.GetsockoptTCPInfo(sock, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, time.Time{}
	}
	age = time.Duration(info.Last_data_sent) * time.Millisecond
	before := age + time.Duration(info.Rtt)*time.Microsecond + clockSlack
	if info.Total_retrans > 0 {
		before += resentTime
	}
	return age, time.Now().Add(-before)
}

// errProposal means a peer that sent a part of a PROPOSAL.
var errProposal = errors.New("launch: the peer sent half a CLC proposal")

// decline answers the PROPOSAL with which the peer begins, or begins within wait,
// and reports whether there was one. What the peer sent else is left unread.
func (s *supervisor) decline(sock int, wait time.Duration) (bool, error) {
	var buf [wire.MaxCLCLen]byte
	end := time.Now().Add(wait)
	for {
		n, _, err := unix.Recvfrom(sock, buf[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) || err == nil && n == 0 {
			return false, nil // the program sees it
		}
		size := 0
		if err == nil {
			if size = proposalIn(buf[:n]); size == 0 {
				return false, nil
			}
			if size <= n {
				if _, err := wire.ParseProposal(buf[:size]); err != nil {
					return false, nil
				}
				return true, sendDecline(sock, size)
			}
			// The rest of what has begun comes, or nothing that makes sense.
			if wait == 0 {
				wait = proposalTime
				end = time.Now().Add(wait)
			}
		}
		left := time.Until(end)
		if left <= 0 {
			if size > 0 {
				return false, errProposal
			}
			return false, nil
		}
		if size > 0 {
			// What is there raises no further event.
			time.Sleep(min(left, time.Millisecond))
		} else {
			p := []unix.PollFd{{Fd: int32(sock), Events: unix.POLLIN}}
			_, _ = unix.Poll(p, int(min(left, validTick)/time.Millisecond)+1)
		}
		if s.ctx.Err() != nil {
			return false, nil
		}
	}
}

// proposalIn returns how long the PROPOSAL is that b begins with, in bytes, or 0
// if it begins with something else. Of a part of a header it says more than len(b).
func proposalIn(b []byte) int {
	if len(b) < wire.HeaderLen {
		var begin [wire.HeaderLen]byte
		binary.BigEndian.PutUint32(begin[:], wire.EyecatcherSMCR)
		begin[4] = byte(wire.TypeProposal)
		if m := min(len(b), 5); string(b[:m]) != string(begin[:m]) {
			return 0
		}
		return wire.HeaderLen
	}
	h, err := wire.ParseHeader(b)
	if err != nil || h.Type != wire.TypeProposal {
		return 0
	}
	return h.Length
}

// refuse takes a PROPOSAL of size bytes from a connection, which may have been
// taken already (0), and answers it with a DECLINE.
func sendDecline(sock, size int) error {
	var buf [wire.MaxCLCLen]byte
	var m wire.Decline
	m.Diagnosis = smc.DiagNoSMCDev
	if size > 0 {
		n, _, err := unix.Recvfrom(sock, buf[:size], unix.MSG_DONTWAIT)
		if err != nil || n != size {
			return errors.Join(errProposal, err)
		}
		p, err := wire.ParseProposal(buf[:size])
		if err != nil {
			return err
		}
		if !p.TypeV1.HasR() { // as a stack does
			m.Version, m.OSType = wire.Version2, smc.OSLinux
		}
	}
	b, err := m.AppendBinary(buf[:0])
	if err != nil {
		return err
	}
	if err := unix.Sendto(sock, b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil); err != nil {
		return err
	}
	return awaitSent(sock, gateTime)
}

// gateTime is how long the gate of a stack that ends may still be there (package
// tcpopt), which keeps all but the stack from sending.
const gateTime = time.Second

// errGated means a connection on which the launcher cannot decline SMC, as there is
// a stack, which does not deal with the connection. The program cannot send on it.
var errGated = errors.New("launch: the stack lets nobody send on the connection")

// leaves waits until what was written to a socket leaves it, for limit at most.
func awaitSent(sock int, limit time.Duration) error {
	for end := time.Now().Add(limit); ; time.Sleep(2 * time.Millisecond) {
		switch left, err := unix.IoctlGetInt(sock, unix.SIOCOUTQNSD); {
		case err != nil:
			return err
		case left == 0:
			return nil
		case !time.Now().Before(end):
			// The peer is to learn at once that it waits in vain.
			_ = unix.SetsockoptLinger(sock, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			return errGated
		}
		// TCP does not try again on its own so soon.
		_ = unix.SetsockoptInt(sock, unix.IPPROTO_TCP, unix.TCP_CORK, 0)
	}
}

// takeBack carries a connection, which the program has, over TCP, after its
// service ended before the CLC handshake was over. It returns false where the
// peer cannot be told so any more: the service had accepted.
func (c *conn) takeBack() bool {
	if c.own == nil || c.pair.end < 0 || !uncertain(c.pair.end) {
		return false
	}
	if err := c.own.Control(c.declineLate); err != nil {
		c.s.log.Debug("cannot go on without the stack", "conn", c.cc.ID(), "remote", c.remote, "err", err)
		return false
	}
	c.s.stats.tcp(ReasonNoService)
	c.unready = false
	c.mu.Lock()
	c.tcp, c.here = c.own.Take(), true
	c.mu.Unlock()
	return true
}

// errAccepted means that the service has answered the peer's PROPOSAL.
var errAccepted = errors.New("launch: the CLC handshake has gone too far")

// declineLate tells the peer that there is no SMC, wherever in the CLC handshake
// the service left it.
func (c *conn) declineLate(sock int) error {
	info, err := unix.GetsockoptTCPInfo(sock, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return err
	}
	pending, err := unix.IoctlGetInt(sock, unix.SIOCINQ)
	switch {
	case err != nil:
		return err
	case info.Bytes_sent > 0:
		return errAccepted
	case info.Bytes_received == uint64(pending): // nothing was taken
		_, err := c.s.decline(sock, proposalTime)
		return err
	case pending == 0:
		return sendDecline(sock, 0)
	}
	return errProposal
}

// abortOwn resets the TCP connection that takeBack would have gone on with.
func (c *conn) abortOwn() {
	if c.own != nil {
		_ = c.own.Control(func(fd int) error {
			return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		})
	}
	c.closeOwn()
}

// closeOwn lets go of the TCP socket that takeBack would need.
func (c *conn) closeOwn() {
	if c.own != nil {
		_ = c.own.Close()
		c.own = nil
	}
}

// smcOptionIn reports whether an IP packet with a TCP SYN, as TCP_SAVED_SYN returns
// it, announces SMC-R. The packet has no IPv6 extension headers.
func smcOptionIn(p []byte) bool {
	if len(p) == 0 {
		return false
	}
	ip := 40
	if p[0]>>4 == 4 {
		ip = int(p[0]&15) * 4
	}
	if len(p) < ip+20 {
		return false
	}
	end := min(ip+int(p[ip+12]>>4)*4, len(p))
	return wire.HasTCPOption(p[min(ip+20, end):end])
}
