// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"smcr/internal/testing/adversary"
	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// manyEcho answers all connections, of which there may be thousands.
const manyEcho = `
import resource, selectors, socket, sys
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
l = socket.create_server((sys.argv[1], 7700), backlog=int(sys.argv[2]))
s = selectors.DefaultSelector()
s.register(l, selectors.EVENT_READ)
print('listening')
while True:
    for key, _ in s.select():
        if key.fileobj is l:
            s.register(l.accept()[0], selectors.EVENT_READ)
            continue
        try: b = key.fileobj.recv(4096)
        except OSError: b = b''
        if b: key.fileobj.sendall(b)
        else:
            s.unregister(key.fileobj)
            key.fileobj.close()
`

// keptClients makes connections, uses each once, and keeps them.
const keptClients = `
import socket, sys, time
kept = []
for i in range(int(sys.argv[2])):
    c = socket.create_connection((sys.argv[1], 7700))
    c.sendall(b'hello')
    assert c.recv(5) == b'hello'
    kept.append(c)
print('made')
time.sleep(1000)
`

// flood has a host make connections that announce SMC, some hundred in a second, until ctx ends. What is said on them is up to say.
func flood(ctx context.Context, h *adversary.Host, to netip.AddrPort, say func(*adversary.Dialog)) (made *atomic.Int64, wait func() []*adversary.Dialog) {
	made = new(atomic.Int64)
	var mu sync.Mutex
	var all []*adversary.Dialog
	var floods sync.WaitGroup
	for range 4 {
		floods.Go(func() {
			for ctx.Err() == nil {
				list, err := h.Dial(ctx, to, 10)
				if err != nil {
					continue
				}
				for _, d := range list {
					say(d)
				}
				mu.Lock()
				all = append(all, list...)
				mu.Unlock()
				made.Add(int64(len(list)))
				time.Sleep(100 * time.Millisecond) // Real time: it makes traffic, and the machine is for others, too.
			}
		})
	}
	return made, func() []*adversary.Dialog {
		floods.Wait()
		return all
	}
}

// TestSilentHost: a host of the LAN whose connections announce SMC and say nothing, or too little, has a share of what a server's user may
// have, and is served over TCP beyond that. A host that was never met uses SMC-R meanwhile. Then nothing is announced to the silent one for a time.
func TestSilentHost(t *testing.T) {
	netnstest.Require(t, "nsenter", "/usr/bin/python3", "setpriv")
	const others = 20
	for name, say := range map[string]string{"nothing": "", "the header of a message": "\xe2\xd4\xc3\xd9\x01\x00\x34\x10"} {
		t.Run(name, func(t *testing.T) {
			lan := netnstest.NewLAN(t, 3)
			l := &lab{Pair: &netnstest.Pair{A: lan.Hosts[0], B: lan.Hosts[1]}, t: t}
			attacker, err := adversary.Open(lan.Hosts[2])
			if err != nil {
				t.Fatal(err)
			}
			defer attacker.Close()
			const most = 256
			l.serve(l.A, "--user-connections", strconv.Itoa(most))
			l.serve(l.B)
			server := l.under(l.A, "setpriv", "--reuid=1000", "--clear-groups", "/usr/bin/python3", "-u", "-c", manyEcho, l.A.Addr(), "4096")
			if err := server.WaitOutput("listening", startTime); err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			made, wait := flood(ctx, attacker, netip.MustParseAddrPort(l.A.Addr()+":7700"), func(d *adversary.Dialog) { _, _ = io.WriteString(d.Conn, say) })
			testkind.Eventually(t, "the host has made as many connections as a user may have", func() (any, bool) { n := made.Load(); return n, n > 2*most })
			client := l.under(l.B, "/usr/bin/python3", "-u", "-c", keptClients, l.A.Addr(), strconv.Itoa(others))
			if err := client.WaitOutput("made", startTime); err != nil {
				t.Error(err)
			}
			l.wantSMC(l.B, map[string]int{"user": others})
			testkind.Eventually(t, "the host is known to be silent", func() (any, bool) {
				out := l.smcr(l.A, "info", "-o", "json")
				return out, strings.Contains(out, "silent-peer")
			})
			stop()
			all := wait()
			defer func() {
				for _, d := range all {
					_ = d.Close()
				}
			}()
			// The last one is TCP, and works.
			last := all[len(all)-1].Conn
			_ = last.SetDeadline(time.Now().Add(startTime))
			if _, err := io.WriteString(last, "hello"); err != nil {
				t.Fatal(err)
			}
			want := say + "hello"
			got := make([]byte, len(want))
			if _, err := io.ReadFull(last, got); err != nil || string(got) != want {
				t.Errorf("a connection beyond the share gets %q, %v", got, err)
			}
			t.Logf("%d connections of the silent host", len(all))
		})
	}
}

// TestSilentBacklog: the connections of a silent host take a part of the queue of a program's listening socket. Another host that was never
// met uses SMC-R meanwhile, no host has to send its SYN again, and none gets a SYN cookie.
func TestSilentBacklog(t *testing.T) {
	netnstest.Require(t, "nsenter", "/usr/bin/python3")
	const backlog, others = 128, 20
	lan := netnstest.NewLAN(t, 3)
	l := &lab{Pair: &netnstest.Pair{A: lan.Hosts[0], B: lan.Hosts[1]}, t: t}
	attacker, err := adversary.Open(lan.Hosts[2])
	if err != nil {
		t.Fatal(err)
	}
	defer attacker.Close()
	l.serve(l.A)
	l.serve(l.B)
	server := l.under(l.A, "/usr/bin/python3", "-u", "-c", manyEcho, l.A.Addr(), strconv.Itoa(backlog))
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	made, wait := flood(ctx, attacker, netip.MustParseAddrPort(l.A.Addr()+":7700"), func(*adversary.Dialog) {})
	testkind.Eventually(t, "the host has made more connections than the queue has room for", func() (any, bool) { n := made.Load(); return n, n > 2*backlog })
	client := l.under(l.B, "/usr/bin/python3", "-u", "-c", keptClients, l.A.Addr(), strconv.Itoa(others))
	if err := client.WaitOutput("made", startTime); err != nil {
		t.Error(err)
	}
	l.wantSMC(l.B, map[string]int{"user": others})
	stop()
	for _, d := range wait() {
		_ = d.Close()
	}
	for h, names := range map[*netnstest.Host][]string{
		l.A:          {"ListenOverflows", "ListenDrops", "TCPReqQFullDoCookies", "TCPReqQFullDrop", "SyncookiesSent"},
		l.B:          {"TCPSynRetrans"},
		lan.Hosts[2]: {"TCPSynRetrans"},
	} {
		all, err := h.Counters(names...)
		if err != nil {
			t.Fatal(err)
		}
		for name, n := range all {
			if n != 0 {
				t.Errorf("%s: %s is %d", h.Name, name, n)
			}
		}
	}
}
