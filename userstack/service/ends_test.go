// SPDX-License-Identifier: Apache-2.0

package service

import (
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/smc"
	"smcr/userstack/broker"
	"smcr/userstack/wire"
)

// TestEndsTakesNothing: a service that ends, while it still has its sessions, leaves
// new connections to TCP and declines those whose peers were promised SMC.
func TestEndsTakesNothing(t *testing.T) {
	checkLeaks(t)
	b := newServiceBed(t, host(t), nil)
	cl := b.launcher(os.Geteuid())
	b.s.endRelays()

	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c, err := cl.Connect(fd, broker.ConnectRequest{Remote: netip.MustParseAddrPort("10.0.0.2:7")})
	_ = unix.Close(fd)
	if err != nil {
		t.Fatal(err)
	}
	if ev := next(t, c, broker.EventNotCandidate); !strings.Contains(ev.Text, "the stack ends") {
		t.Errorf("connect: %+v", ev)
	}

	conn, peer := tcpPair(t)
	sock, err := conn.File()
	if err != nil {
		t.Fatal(err)
	}
	defer sock.Close()
	_ = conn.Close()
	prop, err := proposal.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := peer.Write(prop); err != nil {
		t.Fatal(err)
	}
	if c, err = cl.Accept(int(sock.Fd()), netip.AddrPort{}, netip.AddrPort{}); err != nil {
		t.Fatal(err)
	}
	if ev := next(t, c, broker.EventNotCandidate); !strings.Contains(ev.Text, "the stack ends") {
		t.Errorf("accept: %+v", ev)
	}
	answer := make([]byte, 28)
	_ = peer.SetReadDeadline(time.Now().Add(testTime))
	if _, err := io.ReadFull(peer, answer); err != nil {
		t.Fatal(err)
	}
	m, err := wire.ParseCLC(answer)
	if d, ok := m.(wire.Decline); !ok || d.Diagnosis != smc.DiagNoSMCRDev {
		t.Errorf("the peer is told %+v, %v", m, err)
	}
}
