// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
)

// TestHereOwns compares with what the kernel says of its own addresses.
func TestHereOwns(t *testing.T) {
	testkind.System(t)
	var h here
	defer h.close()
	want := map[string]bool{
		"127.0.0.1": true, "127.255.0.9": true, "::1": true, "::ffff:127.0.0.1": true,
		"0.0.0.0": true, "::": true, "::ffff:0.0.0.0": true,
		"192.0.2.77": false, "2001:db8::77": false, "224.0.0.1": false, "ff02::1%1": false, "255.255.255.255": false,
		"fe80::1234:5678:9abc:77%1": false, "::ffff:192.0.2.77": false,
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLinkLocalUnicast() {
			want[p.Addr().String()] = true
		}
	}
	netdevs, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range netdevs {
		addrs, _ := d.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() {
				want[fmt.Sprintf("%s%%%d", p.Addr(), d.Index)] = true
			}
		}
	}
	for text, want := range want {
		if got := h.owns(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
	other := netip.MustParseAddr("192.0.2.77")
	if n := testing.AllocsPerRun(100, func() { h.owns(other) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestHereAddressChanges changes the route to an address in each way that makes it one of this
// network namespace, or no longer one. The answer is right at once, also if so much changed that
// messages about it were lost. Between changes, the kernel is not asked.
func TestHereAddressChanges(t *testing.T) {
	testkind.System(t)
	inNamespace(t, func(run func(...string)) {
		var h here
		defer h.close()
		const v4, v6, many = "198.51.100.7", "2001:db8::7", "203.0.113.200"
		run("ip", "link", "set", "lo", "up")
		run("ip", "link", "add", "d0", "type", "veth", "peer", "name", "d1")
		run("ip", "link", "set", "d0", "up")
		var batch strings.Builder
		for i := 1; i <= 200; i++ {
			fmt.Fprintf(&batch, "addr add 203.0.113.%d/32 dev lo\n", i)
		}
		file := filepath.Join(t.TempDir(), "batch")
		if err := os.WriteFile(file, []byte(batch.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, step := range []struct {
			do   string
			addr string
			want bool
		}{
			{"", v4, false},
			{"addr add " + v4 + "/32 dev lo", v4, true},
			{"addr del " + v4 + "/32 dev lo", v4, false},
			{"addr add " + v4 + "/32 dev lo", v4, true},
			{"addr del " + v4 + "/32 dev lo", v4, false},
			{"addr add " + v4 + "/24 dev d0", v4, true},
			{"link set d0 down", v4, true}, // Linux receives it from any netdev
			{"link set d0 up", v4, true},
			{"link del d0", v4, false},
			{"route add local 198.51.100.0/24 dev lo", v4, true},
			{"route del local 198.51.100.0/24 dev lo", v4, false},
			{"route add local 198.51.100.0/24 dev lo table 100", v4, false},
			{"rule add to 198.51.100.0/24 lookup 100", v4, true},
			{"rule del to 198.51.100.0/24 lookup 100", v4, false},
			{"", v6, false},
			{"addr add " + v6 + "/128 dev lo", v6, true},
			{"addr del " + v6 + "/128 dev lo", v6, false},
			{"", many, false},
			{"-batch " + file, many, true},
			{"addr flush dev lo to 203.0.113.0/24", many, false},
			{"-batch " + file, many, true},
		} {
			if step.do != "" {
				run(append([]string{"ip"}, strings.Fields(step.do)...)...)
			}
			a := netip.MustParseAddr(step.addr)
			got := h.owns(a)
			// The kernel may make the route to an IPv6 address later.
			for end := time.Now().Add(5 * time.Second); a.Is6() && got != step.want && time.Now().Before(end); got = h.owns(a) {
				time.Sleep(time.Millisecond)
			}
			if got != step.want {
				t.Errorf("ip %s: %s: %v, want %v", step.do, step.addr, got, step.want)
			}
			if _, kept := h.asked[a]; !kept {
				continue // there is no route to it: that is not kept
			}
			before := h.seq
			if h.owns(a) != got || h.seq != before {
				t.Errorf("ip %s: nothing changed, and the kernel was asked again", step.do)
			}
		}
	})
}

// TestHereNear: an answer of the stack is used for a time, and the table has a bound.
func TestHereNear(t *testing.T) {
	testkind.System(t)
	var h here
	now := time.Now()
	a := netip.MustParseAddr("10.0.0.9")
	h.learn(now, netip.MustParseAddr("::ffff:10.0.0.9"))
	if !h.isNear(now, a) || h.isNear(now.Add(nearTime), a) || h.isNear(now, a.Next()) {
		t.Error("the answer is not used for its time")
	}
	for range 3 * maxNear {
		a = a.Next()
		h.learn(now, a)
	}
	if len(h.near) > maxNear {
		t.Errorf("%d addresses", len(h.near))
	}
}

func TestParseRoute(t *testing.T) {
	testkind.System(t)
	answer := make([]byte, rtaAt)
	answer[4], answer[8], answer[rtmTypeAt] = unix.RTM_NEWROUTE, 9, unix.RTN_LOCAL
	if typ, seq, ok := parseRoute(answer); typ != unix.RTN_LOCAL || seq != 9 || !ok {
		t.Error(typ, seq, ok)
	}
	for name, b := range map[string][]byte{
		"empty": nil, "short": answer[:rtmsgAt-1], "no rtmsg": answer[:rtaAt-1], "an error": append([]byte{36, 0, 0, 0, unix.NLMSG_ERROR}, answer[5:]...),
	} {
		if _, _, ok := parseRoute(b); ok {
			t.Error(name)
		}
	}
}

// withinMachine connects to each address given and exchanges a line. The line of each has the
// address, and whether the two sockets are the same as before and speak TCP.
const withinMachine = `
import os, socket, sys, threading
def ident(s): return (os.fstat(s.fileno()).st_ino, os.readlink('/proc/self/fd/%d' % s.fileno()), s.getsockopt(socket.SOL_SOCKET, 57, 8), s.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) in (2, 10))
for nonblock in 0, 1:
    for a in sys.argv[1:]:
        v6 = ':' in a
        l = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET)
        l.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        l.bind(('::' if v6 else '0.0.0.0', 0)); l.listen()
        host, _, scope = a.partition('%')
        to = (host, l.getsockname()[1]) + ((0, int(scope or 0)) if v6 else ())
        c = socket.socket(l.family)
        before = ident(c)
        if nonblock: c.setblocking(False)
        try: c.connect(to)
        except BlockingIOError: pass
        s = l.accept()[0]
        c.settimeout(20); s.settimeout(20)
        c.sendall(b'ping'); assert s.recv(4) == b'ping'
        s.sendall(b'pong'); assert c.recv(4) == b'pong'
        name = s.getpeername() == c.getsockname() and c.getpeername()[1] == to[1]
        # What TCP keeps and a pair does not: bytes of the connection, and half an hour of options.
        info = c.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
        print(a, before == ident(c), s.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN) in (2, 10), name, int.from_bytes(info[120:128], 'little') >= 4)
        s.close(); c.close(); l.close()
# A connection of a socket with itself, and a second connect(), which the kernel refuses.
c = socket.socket(); c.bind(('127.0.0.1', 0)); c.connect(c.getsockname()); c.sendall(b'self'); print(c.recv(4))
try: c.connect(c.getsockname())
except OSError as e: print(e.errno)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.connect(('127.0.0.1', 9)); print(u.getpeername()[1])
try: socket.create_connection(('127.0.0.1', 1))
except ConnectionRefusedError: print('refused')
`

// TestWithinMachine: connections of a program with addresses of its machine are TCP between its
// own sockets, and the stack is neither asked nor told.
func TestWithinMachine(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	to := []string{"127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1"}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			to = append(to, p.Addr().String(), "::ffff:"+p.Addr().String())
			break
		}
	}
	stack := &fakeStack{t: t, byOption: true}
	ctx := t.Context()
	res := launchedWith(t, ctx, Config{Argv: append([]string{"timeout", "60", "python3", "-u", "-c", withinMachine}, to...), Env: os.Environ(), Broker: stack.client(), apart: new(false)}, "")
	var want strings.Builder
	for range 2 {
		for _, a := range to {
			fmt.Fprintln(&want, a, "True True True True")
		}
	}
	want.WriteString("b'self'\n106\n9\nrefused\n")
	if res.out != want.String() || res.status != 0 {
		t.Errorf("status %d\n%s\nwant\n%s", res.status, res.out, want.String())
	}
	// Both ends of each, one of the connection with itself and of the refused one.
	if n := uint64(2*2*len(to) + 2); res.stats.Local != n || len(res.stats.TCP) > 0 || len(res.stats.ByMode) > 0 || len(res.stats.Failed) > 0 {
		t.Errorf("counted %+v, want %d within the machine", res.stats, n)
	}
	if c, a, n := stack.connects.Load(), stack.accepts.Load(), stack.noted.Load(); c != 0 || a != 0 || n != 0 {
		t.Errorf("the stack was asked about %d and %d connections, and told of %d", c, a, n)
	}
}

// inNamespace calls f on a thread with a network namespace of its own, in which run runs
// programs.
func inNamespace(t *testing.T, f func(run func(argv ...string))) {
	t.Helper()
	needProgram(t, "ip")
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		f(func(argv ...string) {
			if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
				t.Errorf("%v: %v\n%s", argv, err, out)
			}
		})
		done <- nil
	}()
	if err := <-done; errors.Is(err, unix.EPERM) {
		t.Skip("needs root to make a network namespace")
	} else if err != nil {
		t.Fatal(err)
	}
}
