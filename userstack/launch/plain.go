// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"smcr/smc"
	"smcr/userstack/wire"
)

// When a stack ends, there may be connections whose SYN-ACK announced SMC: in
// the accept queue, in the TCP handshake, in the CLC handshake. The peer of
// such a connection first sends a CLC PROPOSAL. The launcher answers it with a
// DECLINE, and then the same connection is plain TCP on both ends (RFC 7609,
// section 3.2, and appendix A.2.5). After the end of the stack it is not known
// what the SYN-ACK announced, so the first bytes of the peer decide.

// proposalTime is how long after the connection was made the launcher waits for
// the PROPOSAL of a peer to which SMC may have been announced. Such a peer
// sends it at once. Other peers wait this long at most.
const proposalTime = time.Second

// withoutService makes an accepted connection plain TCP because no service
// answers. doubt is as for plain.
func (s *supervisor) withoutService(a *accepted, doubt bool) bool {
	s.stats.tcp(ReasonNoService)
	return s.plain(a, doubt)
}

// plain makes an accepted connection plain TCP. If doubt is set, a stack may
// just have announced SMC to the peer. A PROPOSAL that has arrived is never left to the
// program (unless the program itself saves SYNs), also if the stack does not take the connection because the peer has given up.
// It returns false if the connection cannot be used.
func (s *supervisor) plain(a *accepted, doubt bool) bool {
	sock := a.sock
	if a.saved && !doubt && !s.sessions.everEnded() || a.readSYN() != synWith {
		return true // a saved SYN can be read once, and the program wants it
	}
	wait := time.Duration(0)
	if age, sent := handshake(sock); doubt || s.sessions.mayHaveAnnounced(sent) {
		wait = max(0, proposalTime-age)
	}
	declined, err := decline(s.ctx, sock, wait)
	if err != nil {
		s.log.Debug("connection dropped", "err", err)
		return false
	}
	if declined {
		s.log.Debug("declined SMC in place of the stack")
	}
	return true
}

// handshake returns the age of an accepted connection on which this end has
// sent nothing, and the earliest time at which its SYN-ACK was sent.
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

// errProposal means that the peer sent only a part of a PROPOSAL.
var errProposal = errors.New("launch: the peer sent half a CLC proposal")

// decline answers the PROPOSAL with which the peer begins, or begins within
// wait, and reports whether there was one. Other data of the peer is left
// unread. The end of ctx ends the wait.
func decline(ctx context.Context, sock int, wait time.Duration) (bool, error) {
	var buf [wire.MaxCLCLen]byte
	end := time.Now().Add(wait)
	for {
		n, err := peek(sock, buf[:])
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
			// A part of a PROPOSAL has arrived: wait for the rest.
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
			// Data that is already there causes no further event.
			time.Sleep(min(left, time.Millisecond))
		} else {
			p := []unix.PollFd{{Fd: int32(sock), Events: unix.POLLIN}}
			_, _ = unix.Poll(p, int(min(left, validTick)/time.Millisecond)+1)
		}
		if ctx.Err() != nil {
			return false, nil
		}
	}
}

// peek reads what the peer has sent, and leaves it unread. It returns 0 if the peer sends no more,
// and EAGAIN if nothing is there yet. The error of a reset stays for the program: a read, also
// with MSG_PEEK, would take it.
func peek(sock int, b []byte) (int, error) {
	info, err := unix.GetsockoptTCPInfo(sock, unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return 0, err
	}
	if nothingUnread(sock) {
		if info.State == unix.BPF_TCP_CLOSE || info.State == unix.BPF_TCP_CLOSE_WAIT {
			return 0, nil
		}
		return 0, unix.EAGAIN
	}
	n, _, err := unix.Recvfrom(sock, b, unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return n, err
}

// proposalIn returns the length in bytes of the PROPOSAL at the start of b, or
// 0 if b begins with something else. If b has only a part of the header, the
// result is larger than len(b).
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

// sendDecline reads a PROPOSAL of size bytes from a connection and answers it
// with a DECLINE. size is 0 if the PROPOSAL has already been read.
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

// gateTime is how long the gate of a stack that ends may still be there. While
// it is there, only the stack can send (package tcpopt).
const gateTime = time.Second

// errGated means that the launcher cannot decline SMC because a running stack
// has a gate on the connection, although it does not serve it. The program
// cannot send on it either.
var errGated = errors.New("launch: the stack lets nobody send on the connection")

// awaitSent waits until TCP has sent everything that was written to the socket,
// at most for limit.
func awaitSent(sock int, limit time.Duration) error {
	for end := time.Now().Add(limit); ; time.Sleep(2 * time.Millisecond) {
		switch left, err := unix.IoctlGetInt(sock, unix.SIOCOUTQNSD); {
		case err != nil:
			return err
		case left == 0:
			return nil
		case !time.Now().Before(end):
			// Reset the connection on close, so that the peer does not wait.
			_ = unix.SetsockoptLinger(sock, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
			return errGated
		}
		// Make TCP try again now; it would wait longer.
		_ = unix.SetsockoptInt(sock, unix.IPPROTO_TCP, unix.TCP_CORK, 0)
	}
}

// takeBack makes the launcher carry a connection over TCP because the service
// ended before the CLC handshake was over. It returns false if the service has
// already sent ACCEPT, so that a DECLINE is not possible any more.
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

// declineLate sends a DECLINE in the state of the CLC handshake in which the
// service ended.
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
	case info.Bytes_received == uint64(pending): // the service has read nothing
		_, err := decline(c.s.ctx, sock, proposalTime)
		return err
	case pending == 0:
		return sendDecline(sock, 0)
	}
	return errProposal
}

// abortOwn resets the TCP connection of an accepted connection.
func (c *conn) abortOwn() {
	if c.own != nil {
		_ = c.own.Control(func(fd int) error {
			return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		})
	}
	c.closeOwn()
}

// closeOwn closes the launcher's TCP socket of an accepted connection.
func (c *conn) closeOwn() {
	if c.own != nil {
		_ = c.own.Close()
		c.own = nil
	}
}
