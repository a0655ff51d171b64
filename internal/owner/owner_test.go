// SPDX-License-Identifier: Apache-2.0

package owner

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"smcr/internal/testing/testkind"
)

// TestRead finds this process, which has both ends of connections over IPv4, IPv6, and IPv4 in a socket of IPv6.
func TestRead(t *testing.T) {
	testkind.System(t)
	comm, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	me := Process{uint32(os.Getpid()), strings.TrimSuffix(string(comm), "\n")}
	var want []Socket
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", ":0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Skip(err)
		}
		defer l.Close()
		to := l.Addr().(*net.TCPAddr).AddrPort()
		if to.Addr().IsUnspecified() {
			to = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), to.Port())
		}
		c, err := net.Dial("tcp", to.String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		from := c.LocalAddr().(*net.TCPAddr).AddrPort()
		want = append(want, Socket{Local: from, Remote: to}, Socket{Local: to, Remote: from})
	}
	none := Socket{Local: netip.MustParseAddrPort("127.0.0.1:1"), Remote: netip.MustParseAddrPort("127.0.0.1:2")}
	find := Read()
	for _, s := range want {
		if got, ok := find(s); !ok || got != me {
			t.Errorf("%v: %v, %t, want %v", s, got, ok, me)
		}
	}
	if got, ok := find(none); ok {
		t.Errorf("%v", got)
	}
}

// TestShared has a socket that two processes have, and files that say nothing.
func TestShared(t *testing.T) {
	proc := t.TempDir()
	for _, p := range []struct{ pid, comm, fd string }{
		{"300", "later", "socket:[77]"}, {"200", "first\n", "socket:[77]"}, {"100", "other", "/dev/null"},
		{"150", "odd", "socket:[x]"}, {"160", "large", "socket:[77777777777]"}, {"self", "no number", "socket:[77]"},
	} {
		dir := filepath.Join(proc, p.pid, "fd")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(p.fd, filepath.Join(dir, "3")); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, p.pid, "comm"), []byte(p.comm), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := Socket{Local: netip.MustParseAddrPort("10.0.0.1:1"), Remote: netip.MustParseAddrPort("10.0.0.1:2")}
	if got := processes(map[Socket]uint32{s: 77}, proc); len(got) != 1 || got[77] != (Process{200, "first"}) {
		t.Errorf("%v", got)
	}
}
