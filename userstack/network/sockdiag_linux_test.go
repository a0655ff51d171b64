// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/inetdiag"
	"smcr/internal/testing/testkind"
	"smcr/nl"
	"smcr/smc"
)

// TestSockDiag asks the kernel for real sockets.
func TestSockDiag(t *testing.T) {
	testkind.System(t)
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
		var lcookie, cookie uint64
		lr, _ := l.(*net.TCPListener).SyscallConn()
		cr, _ := c.(*net.TCPConn).SyscallConn()
		if err := errors.Join(lr.Control(func(fd uintptr) { lcookie = Cookie(int(fd)) }), cr.Control(func(fd uintptr) { cookie = Cookie(int(fd)) })); err != nil {
			t.Fatal(err)
		}
		diag, err := OpenSockDiag()
		if err != nil {
			t.Fatal(err)
		}
		defer diag.Close()
		for _, d := range []SockDiag{diag, {}} {
			var rows []nl.Connection
			collect := func() {
				rows = nil
				if err := d.Each(func(k, _ uint64, c nl.Connection) {
					if k == lcookie || k == cookie {
						rows = append(rows, c)
					}
				}); err != nil {
					t.Fatal(err)
				}
			}
			collect()
			if len(rows) != 2 {
				t.Fatalf("%d of the two sockets: %v", len(rows), rows)
			}
			for _, r := range rows {
				switch r.State {
				case smc.StateListen:
					if r.Local.String() != l.Addr().String() || r.Remote.IsValid() {
						t.Errorf("listener: %+v", r)
					}
				case smc.StateActive:
					if r.Local.String() != c.LocalAddr().String() || r.Remote.String() != l.Addr().String() || r.UID != uint32(unix.Geteuid()) || r.Inode == 0 {
						t.Errorf("connection: %+v", r)
					}
				default:
					t.Errorf("state %v", r.State)
				}
			}
		}
		c.Close()
		l.Close()
		if err := diag.Each(func(k, _ uint64, c nl.Connection) {
			if k == lcookie || k == cookie {
				t.Errorf("closed: %+v", c)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range []inetdiag.Message{{}, {State: unix.BPF_TCP_ESTABLISHED}, {State: unix.BPF_TCP_TIME_WAIT, Inode: 1}} {
		if c, ok := connectionOf(m); ok {
			t.Errorf("%+v: %+v", m, c)
		}
	}
}
