// SPDX-License-Identifier: Apache-2.0

package network

import (
	"net"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"smcr/internal/inetdiag"
	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// TestTCPInfo: the counters of a real connection are what its two ends have written.
func TestTCPInfo(t *testing.T) {
	testkind.System(t)
	var i unix.TCPInfo
	for got, want := range map[uintptr]uintptr{
		tcpInfoTotalRetrans: unsafe.Offsetof(i.Total_retrans), tcpInfoAcked: unsafe.Offsetof(i.Bytes_acked),
		tcpInfoReceived: unsafe.Offsetof(i.Bytes_received), tcpInfoSent: unsafe.Offsetof(i.Bytes_sent), tcpInfoResent: unsafe.Offsetof(i.Bytes_retrans),
	} {
		if got != want {
			t.Errorf("offset %d, want %d", got, want)
		}
	}
	for _, host := range []string{"127.0.0.1:0", "[::1]:0"} {
		var lc net.ListenConfig
		lc.SetMultipathTCP(false) // which has sockets of its own
		l, err := lc.Listen(t.Context(), "tcp", host)
		if err != nil {
			t.Skip(err)
		}
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		pass := func(from, to net.Conn, n int) {
			if _, err := from.Write(make([]byte, n)); err != nil {
				t.Fatal(err)
			}
			for n > 0 {
				m, err := to.Read(make([]byte, n))
				if err != nil {
					t.Fatal(err)
				}
				n -= m
			}
		}
		pass(c, s, 1000)
		pass(s, c, 300)
		seen := map[string]TCPInfo{}
		if err := (SockDiag{}).EachInfo(func(s TCPInfo) { seen[s.Local.String()] = s }); err != nil {
			t.Fatal(err)
		}
		client, listener := seen[c.LocalAddr().String()], seen[l.Addr().String()]
		if !client.Counted || client.Sent != 1000 || client.Received != 300 || client.Cookie == 0 || client.Inode == 0 || client.Remote.String() != l.Addr().String() {
			t.Errorf("client: %+v", client)
		}
		// The listener and the accepted connection have the same local address.
		if listener.Remote.IsValid() && (listener.Sent != 300 || listener.Received != 1000) || listener.State == smc.StateListen && listener.Counted {
			t.Errorf("server: %+v", listener)
		}
	}
	if _, ok := tcpInfoOf(inetdiag.Message{State: unix.BPF_TCP_ESTABLISHED}); ok {
		t.Error("a socket that no process has")
	}
}
