// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
)

// boundClient makes connections from an address to one at port 7, one after the other, each for an echo.
const boundClient = `
import socket, sys
own, host, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
for i in range(n):
    c = socket.create_connection((host, 7), 30, (own, 0))
    c.sendall(b'x' * 1000)
    got = 0
    while got < 1000: got += len(c.recv(65536))
    c.close()
print('done', flush=True)
`

// TestPathPoisoned: a user connects to an address of the peer with which RoCE does not pass. The connections of other users, between
// other addresses of the same hosts, use SMC-R, their first contact, too.
func TestPathPoisoned(t *testing.T) {
	const own, second = "10.99.0.2", "10.99.0.1"
	l := newLab(t, "python3", "setpriv", "nft")
	for h, a := range map[*netnstest.Host]string{l.A: second, l.B: own} {
		for _, argv := range [][]string{{"ip", "address", "add", a + "/24", "dev", h.Links[0].Name}} {
			if out, err := h.Command(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %v: %s", argv, err, out)
			}
		}
	}
	const rules = "add table ip block; add chain ip block in { type filter hook prerouting priority raw; }; " +
		"add rule ip block in ip saddr " + second + " udp dport 4791 counter drop"
	if out, err := l.B.Command(t.Context(), "nft", rules).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l.serveAsIs(l.A)
	l.serveAsIs(l.B)
	server := l.under(l.A, "python3", "-u", "-c", blockedServer, "0.0.0.0")
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	connect := func() {
		argv := as(hostileUser, underArgv("python3", "-c", boundClient, l.B.Addr(), second, "3")...)
		hostile := l.B.Go(t, argv[0], argv[1:]...)
		if err := hostile.Wait(time.Minute); err != nil {
			t.Fatalf("%v\n%s", err, hostile.Log())
		}
		if smcr, tcp := overSMCR(t, hostile.Log()); smcr != 0 || tcp != 3 {
			t.Fatalf("%d connections over SMC-R, where RoCE does not pass:\n%s", smcr, hostile.Log())
		}
	}
	connect()
	// Root sees what was learnt with the connections of a user, and that user does, but no other one. It is known for 10 s. Later the connections of this
	// user go over the link group of the others.
	testkind.Eventually(t, "what was learnt is shown", func() (any, bool) {
		connect()
		shown := map[string]string{}
		for _, uid := range []string{"0", hostileUser, otherUser} {
			argv := as(uid, bin("smcr"), "--backend", "user", "info", "-o", "table")
			out, err := l.B.Command(t.Context(), argv[0], argv[1:]...).CombinedOutput()
			if err != nil {
				t.Fatalf("user %s: %v\n%s", uid, err, out)
			}
			for line := range strings.Lines(string(out)) {
				if strings.Contains(line, second+":7, roce-blocked, for ") && strings.Contains(line, "user "+hostileUser+":") {
					shown[uid] = line
				}
			}
		}
		if line, sees := shown[otherUser]; sees {
			t.Fatalf("another user sees %s", line)
		}
		return shown, len(shown) == 2
	})
	took, log := l.echoes(5, 0, 20_000)
	t.Logf("connections of another user: %v", took)
	if smcr, tcp := overSMCR(t, log); smcr != 5 || tcp != 0 {
		t.Errorf("%d connections of another user over SMC-R and %d over TCP, want 5 over SMC-R:\n%s", smcr, tcp, log)
	}
	out := l.smcr(l.A, "--backend", "user", "info", "-o", "table")
	if !strings.Contains(out, l.B.Addr()+" from "+second+", roce-blocked, ") || strings.Contains(out, "from "+l.A.Addr()) {
		t.Errorf("info:\n%s", out)
	}
}
