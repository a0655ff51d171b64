// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/retry"
	"smcr/internal/testing/netnstest"
	"smcr/nl"
	"smcr/smc"
)

// TestListedAtOnce: who has seen connect() return finds the connection in what the stacks of both hosts list and count, with what carries
// it.
func TestListedAtOnce(t *testing.T) {
	for _, test := range []struct {
		name           string
		server, client []string // flags of the stacks
		conns          int
		before         func(l *lab, i int) // each connection
		tcp            bool
	}{
		{name: "version 1", server: []string{"--no-default-eid"}, client: []string{"--no-default-eid"}, conns: 60},
		{name: "version 2", conns: 60},
		{name: "first contacts", conns: 16, before: (*lab).endGroups},
		{name: "declined", server: []string{"--roce", "v1"}, client: []string{"--roce", "v2"}, conns: 60, tcp: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLab(t)
			l.bare = true
			l.serveAsIs(l.B, test.client...)
			l.serveAsIs(l.A, test.server...)
			l.awaitActive(l.A, l.B)
			conns := test.conns
			if testing.Short() {
				conns = (conns + 3) / 4
			}
			client, server := l.asks(l.B), l.asks(l.A)
			wrong := map[string]int{}
			for i := range conns {
				if test.before != nil {
					test.before(l, i)
				}
				// Each connection is announced, whatever became of others: their ports are other ones.
				ln, fd := l.listens(l.A), l.socket(l.B)
				before := l.counted(client)
				at, err := connected(ln, fd)
				if err != nil {
					t.Fatal(err)
				}
				mode := nl.ModeSMCR
				if test.tcp {
					mode = nl.ModeTCP
				}
				to := netip.AddrPortFrom(netip.AddrFrom4(ln.at.Addr), uint16(ln.at.Port))
				if is := l.listed(client, at, to, mode); is != "" {
					wrong["the client's stack: "+is]++
				}
				// Nobody has accepted the connection: it is listed where the stack carries it.
				if is := l.listed(server, to, at, mode); is != "" && !test.tcp {
					wrong["the server's stack: "+is]++
				}
				if n := l.counted(client); n[mode] != before[mode]+1 || n[nl.ModeSMCR]+n[nl.ModeTCP] != before[nl.ModeSMCR]+before[nl.ModeTCP]+1 {
					wrong["the client's stack does not count it"]++
				}
				_, _ = unix.Close(fd), unix.Close(ln.fd)
			}
			for what, n := range wrong {
				t.Errorf("%d of %d connections: %s", n, conns, what)
			}
		})
	}
}

// asks returns a connection for commands with the stack of a host: a program that is started for each one comes too late to see anything.
func (l *lab) asks(h *netnstest.Host) (c *nl.Client) {
	l.t.Helper()
	if err := h.Do(func() (err error) {
		c, err = nl.DialUser(l.t.Context())
		return err
	}); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = c.Close() })
	return c
}

// connected connects a socket, and returns its address.
func connected(ln *listening, fd int) (at netip.AddrPort, err error) {
	if err := unix.Connect(fd, ln.at); err != unix.EINPROGRESS {
		return at, fmt.Errorf("connect: %w", err)
	}
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	if err := retry.Interrupted(func() error {
		n, err := unix.Poll(fds, int(startTime.Milliseconds()))
		if err == nil && n == 0 {
			err = unix.ETIMEDOUT
		}
		return err
	}); err != nil {
		return at, fmt.Errorf("poll: %w", err)
	}
	code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err != nil:
		return at, fmt.Errorf("getsockopt: %w", err)
	case code != 0:
		return at, fmt.Errorf("connect: %w", syscall.Errno(code))
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return at, fmt.Errorf("getsockname: %w", err)
	}
	in := sa.(*unix.SockaddrInet4)
	return netip.AddrPortFrom(netip.AddrFrom4(in.Addr), uint16(in.Port)), nil
}

// listed says what is wrong with the list of a stack: a connection must be there, once, and be carried as mode says.
func (l *lab) listed(c *nl.Client, local, remote netip.AddrPort, mode nl.Mode) string {
	l.t.Helper()
	all, err := c.Connections(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	rows := 0
	var is nl.Connection
	for _, row := range all {
		if row.Local == local && row.Remote == remote {
			rows, is = rows+1, row
		}
	}
	switch {
	case rows != 1:
		return fmt.Sprintf("%d rows", rows)
	case is.State != smc.StateActive || is.Mode != mode || mode == nl.ModeTCP && is.Fallback.Reason == 0:
		return fmt.Sprintf("%v, %v, reason 0x%08x", is.State, is.Mode, is.Fallback.Reason)
	}
	return ""
}

// counted returns how many connections a stack has counted as a client.
func (l *lab) counted(c *nl.Client) map[nl.Mode]uint64 {
	l.t.Helper()
	stats, err := c.Stats(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	fallbacks, err := c.Fallbacks(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	return map[nl.Mode]uint64{nl.ModeSMCR: stats.SMCR.Connections(), nl.ModeTCP: fallbacks.ClientTotal}
}
