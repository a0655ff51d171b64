// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"io"
	"net"
	"os"
	"testing"

	"smcr/internal/testing/testkind"
)

// TestLAN: every host of a LAN reaches every other, over both IP versions, and nothing of
// the LAN remains after Close.
func TestLAN(t *testing.T) {
	testkind.System(t)
	Require(t, "nsenter")
	l, err := CreateLAN(3, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	for _, to := range l.Hosts {
		for _, address := range []string{to.Addr(), to.Addr6(), to.Links[1].IPv4.String(), to.Links[1].IPv6.String()} {
			var ln net.Listener
			if err := to.Do(func() (err error) { ln, err = net.Listen("tcp", net.JoinHostPort(address, "0")); return err }); err != nil {
				t.Fatal(err)
			}
			for _, from := range l.Hosts {
				var c net.Conn
				if err := from.Do(func() (err error) { c, err = net.DialTimeout("tcp", ln.Addr().String(), testkind.Patience); return err }); err != nil {
					t.Fatalf("%s to %s: %v", from.Name, address, err)
				}
				s, err := ln.Accept()
				if err != nil {
					t.Fatal(err)
				}
				if _, err := s.Write([]byte("x")); err != nil {
					t.Error(err)
				}
				if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
					t.Error(err)
				}
				s.Close()
				c.Close()
			}
			ln.Close()
		}
	}
	paths := []string{l.fabric.Path()}
	for _, h := range l.Hosts {
		paths = append(paths, h.Path())
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, p := range paths {
		if _, err := os.Stat(p); !os.IsNotExist(err) {
			t.Errorf("%s: %v, want that it does not exist", p, err)
		}
	}
}
