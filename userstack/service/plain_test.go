// SPDX-License-Identifier: Apache-2.0

package service

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/nl"
	"smcr/smc"
	"smcr/userstack"
	"smcr/userstack/broker"
)

// listed returns the rows of TCP connections and listeners of a service.
func (b *serviceBed) listed() []nl.Connection {
	b.t.Helper()
	rows, err := b.s.stack.Control().Connections(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return slices.DeleteFunc(rows, func(c nl.Connection) bool { return c.Mode != nl.ModeTCP && c.State != smc.StateListen })
}

// wantListed waits until n such rows are there.
func (b *serviceBed) wantListed(n int) []nl.Connection {
	b.t.Helper()
	var rows []nl.Connection
	testkind.Eventually(b.t, fmt.Sprintf("want %d rows", n), func() (any, bool) {
		rows = b.listed()
		return rows, len(rows) == n
	})
	return rows
}

// counted returns how often a reason was counted on a side.
func (b *serviceBed) counted(side smc.Role, reason uint32) (n uint64) {
	b.t.Helper()
	f, err := b.s.stack.Control().Fallbacks(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	for _, r := range f.Reasons {
		if r.Side == side && r.Reason == reason {
			n += r.Count
		}
	}
	return n
}

// socketName returns a socket's own address.
func socketName(t testing.TB, fd int) netip.AddrPort {
	t.Helper()
	a, err := socketAddr(unix.Getsockname(fd))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestPlainListed checks that connections that stay TCP are listed with their
// reasons and counted, as long as the program has them and no longer, and that
// the service does not keep them open.
func TestPlainListed(t *testing.T) {
	testkind.System(t)
	for _, test := range []struct {
		name   string
		tune   func(*userstack.Config)
		remote string // what the stack is asked for, if not the listener
		smc    bool   // the peer announces SMC
		reason uint32
	}{
		{name: "the peer does not speak SMC", reason: 0x03010000},
		{name: "no RoCE device", tune: func(c *userstack.Config) { c.NetDevs = []string{"none"} }, smc: true, reason: 0x03030002},
		{name: "not on the link", remote: "192.0.2.1:80", smc: true, reason: 0x030e0000},
		{name: "no option", tune: func(c *userstack.Config) { c.NoOption = true }, reason: 0x03000000},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newServiceBed(t, host(t), test.tune)
			b.opt.smc.Store(test.smc)
			l, addr := listenTCP(t)
			fd := tcpSocket(t, 0)
			remote := addr
			if test.remote != "" {
				remote = netip.MustParseAddrPort(test.remote)
			}
			c, err := b.launcher(0).Connect(fd, broker.ConnectRequest{Remote: remote})
			if err != nil {
				t.Fatal(err)
			}
			if test.reason == 0x03010000 {
				if ev := next(t, c, broker.EventEstablished); ev.PeerSMC {
					t.Error("the peer does not speak SMC")
				}
			} else {
				next(t, c, broker.EventNotCandidate)
				if rows := b.listed(); len(rows) != 0 {
					t.Errorf("not connected, and listed: %+v", rows)
				}
				if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: addr.Addr().As4(), Port: int(addr.Port())}); err != nil {
					t.Fatal(err)
				}
			}
			next(t, c, broker.EventClosed)
			peer := accept(t, l)
			var st unix.Stat_t
			if err := unix.Fstat(fd, &st); err != nil {
				t.Fatal(err)
			}
			row := b.wantListed(1)[0]
			if row.State != smc.StateActive || row.Mode != nl.ModeTCP || row.Fallback != (nl.ConnFallback{Reason: test.reason}) ||
				row.Remote != addr || row.Local != socketName(t, fd) || row.UID != uint32(unix.Geteuid()) || row.Inode != st.Ino ||
				row.Command != "program" || row.PID == 0 || row.Cookie == 0 || row.Link != nil || row.LinkGroup != 0 {
				t.Errorf("listed: %+v", row)
			}
			if n := b.counted(smc.Client, test.reason); n != 1 {
				t.Errorf("counted %d times", n)
			}
			// Half closed it is still the program's.
			if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
				t.Fatal(err)
			}
			if row = b.wantListed(1)[0]; row.State != smc.StateActive || row.Shutdown != nl.ShutdownSend {
				t.Errorf("half closed: %+v", row)
			}
			if n, err := peer.Read(make([]byte, 1)); n != 0 || err == nil {
				t.Errorf("read %d, %v: the socket is not shut", n, err)
			}
			_ = unix.Close(fd)
			b.wantListed(0)
			// The peer can still write, and is told that nobody is there: no copy
			// of the socket is left.
			wantReset(t, peer)
		})
	}
}

// TestPlainNoted: connections that the launcher left to TCP are listed and counted like
// those that it asked about. What another user says of a socket is not shown.
func TestPlainNoted(t *testing.T) {
	testkind.System(t)
	b := newServiceBed(t, host(t), nil)
	_, addr := listenTCP(t)
	var notes []broker.Note
	for _, reason := range []broker.NoteReason{broker.NoteNoPeer, broker.NoteShort} {
		fd := tcpSocket(t, 0)
		if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: addr.Addr().As4(), Port: int(addr.Port())}); err != nil {
			t.Fatal(err)
		}
		cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)
		if err != nil {
			t.Fatal(err)
		}
		notes = append(notes, broker.Note{Cookie: cookie, Reason: reason, Client: true})
	}
	if unix.Geteuid() == 0 {
		if err := b.launcher(65534).Note(notes); err != nil {
			t.Fatal(err)
		}
		testkind.Eventually(t, "not counted", func() (any, bool) { return nil, b.counted(smc.Client, 0x03fe0000) > 0 })
		if rows := b.listed(); len(rows) != 0 {
			t.Errorf("another user's word is listed: %+v", rows)
		}
	}
	before := b.counted(smc.Client, 0x03fe0000)
	if err := b.launcher(0).Note(notes); err != nil {
		t.Fatal(err)
	}
	reasons := map[uint32]bool{}
	for _, row := range b.wantListed(2) {
		reasons[row.Fallback.Reason] = true
		if row.Command != "program" || row.Remote != addr {
			t.Errorf("listed: %+v", row)
		}
	}
	if !reasons[0x03010000] || !reasons[0x03fe0000] {
		t.Errorf("reasons %v", reasons)
	}
	if n := b.counted(smc.Client, 0x03fe0000) - before; n != 1 {
		t.Errorf("counted %d times", n)
	}
}

// wantReset writes until that fails.
func wantReset(t *testing.T, c interface{ Write([]byte) (int, error) }) {
	t.Helper()
	testkind.Eventually(t, "the socket is still open", func() (any, bool) {
		_, err := c.Write([]byte("x"))
		return err, err != nil
	})
}

// TestPlainAccepted does so for a server, and lists its listener.
func TestPlainAccepted(t *testing.T) {
	testkind.System(t)
	b := newServiceBed(t, host(t), nil)
	b.opt.smc.Store(false)
	cl := b.launcher(0)
	lfd := tcpSocket(t, 0)
	if err := unix.Bind(lfd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := cl.Listen(t.Context(), lfd); err != nil {
		t.Fatal(err)
	}
	if rows := b.listed(); len(rows) != 0 {
		t.Errorf("does not listen yet: %+v", rows)
	}
	if err := unix.Listen(lfd, 8); err != nil {
		t.Fatal(err)
	}
	addr := socketName(t, lfd)
	row := b.wantListed(1)[0]
	if row.State != smc.StateListen || row.Local != addr || row.Remote.IsValid() || row.Command != "program" || row.Fallback != (nl.ConnFallback{}) {
		t.Errorf("listener: %+v", row)
	}
	fd := tcpSocket(t, 0)
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: addr.Addr().As4(), Port: int(addr.Port())}); err != nil {
		t.Fatal(err)
	}
	sock, _, err := unix.Accept(lfd)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cl.Accept(sock, addr, socketName(t, fd))
	if err != nil {
		t.Fatal(err)
	}
	next(t, c, broker.EventNotCandidate)
	next(t, c, broker.EventClosed)
	rows := b.wantListed(2)
	i := slices.IndexFunc(rows, func(c nl.Connection) bool { return c.State == smc.StateActive })
	if i < 0 || rows[i].Remote != socketName(t, fd) || rows[i].Local != addr || rows[i].Fallback.Reason != 0x03010000 {
		t.Errorf("accepted: %+v", rows)
	}
	if n := b.counted(smc.Server, 0x03010000); n != 1 {
		t.Errorf("counted %d times", n)
	}
	_ = unix.Close(sock)
	_ = unix.Close(lfd)
	b.wantListed(0)
}

// TestPlainOfOthers checks that a launcher cannot have the sockets of other users
// listed under its name.
func TestPlainOfOthers(t *testing.T) {
	testkind.System(t)
	b := newServiceBed(t, host(t), nil)
	b.opt.smc.Store(false)
	if unix.Geteuid() != 0 {
		t.Skip("needs root, to be somebody else")
	}
	// A launcher says that a socket of another user is its own.
	l, addr := listenTCP(t)
	fd := tcpSocket(t, 0)
	c, err := b.launcher(65534).Connect(fd, broker.ConnectRequest{Remote: addr})
	if err != nil {
		t.Fatal(err)
	}
	next(t, c, broker.EventEstablished)
	next(t, c, broker.EventClosed)
	accept(t, l)
	if rows := b.listed(); len(rows) != 0 {
		t.Errorf("listed: %+v", rows)
	}
}
