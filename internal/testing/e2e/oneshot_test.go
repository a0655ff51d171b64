// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
)

// oneShot is a program that makes one connection, sends and ends, in the way that its
// arguments say, or that receives until the end of the stream and prints what it got.
//
//	ROLE ADDRESS send SIZE HOW
//	ROLE ADDRESS receive DELAY (seconds before it reads) REQUEST (bytes that it sends first)
const oneShot = `
import hashlib, os, signal, socket, struct, sys, time
role, addr, what = sys.argv[1], (sys.argv[2], 7400), sys.argv[3]
if role == 'server':
    l = socket.create_server(addr)
    print('listening', flush=True)
    c, _ = l.accept()
    l.close()
elif sys.argv[-1] == 'nonblock':
    import select
    c = socket.socket(); c.setblocking(False)
    c.connect_ex(addr)
    select.select([], [c], [])
    c.setblocking(True)
else:
    c = socket.create_connection(addr)
def data(n): return (b'payload %d ' % n) * (n // 10 + 1)
if what == 'send':
    n, how = int(sys.argv[4]), sys.argv[5]
    b = data(n)[:n]
    if how == 'daemon':
        if os.fork(): os._exit(0)
        os.setsid(); time.sleep(.1)
    if how == 'fork':
        if os.fork(): c.close(); os._exit(0)
    if how == 'unread':
        c.recv(1, socket.MSG_PEEK)
    c.sendall(b)
    if how == 'linger0': c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    if how == 'killed': os.kill(os.getpid(), signal.SIGKILL)
    if how == 'exit': os._exit(3)
    c.close()
else:
    if sys.argv[5:] and int(sys.argv[5]): c.sendall(bytes(int(sys.argv[5])))
    time.sleep(float(sys.argv[4]))
    got, end = hashlib.sha256(), 'EOF'
    n = 0
    try:
        while b := c.recv(65536):
            got.update(b); n += len(b)
    except OSError as e: end = e.strerror
    right = got.digest() == hashlib.sha256(data(n)[:n]).digest()
    print('got', n, right, end, flush=True)
`

// TestOneShot: what a program has written and closed belongs to the stack. The peer reads all
// of it, whatever ends first: the program or the handshake of SMC.
func TestOneShot(t *testing.T) {
	t.Parallel()
	const small, big = 7, 1 << 20 // big is more than all buffers of one side
	all := func(n int) []string { return []string{fmt.Sprintf("got %d True EOF", n)} }
	reset := []string{"Connection reset by peer"}
	l := newLab(t, "/usr/bin/python3")
	l.serve(l.A)
	l.serve(l.B)
	addr := l.A.Addr()
	for _, c := range []struct {
		name, role string // the role of the program that sends
		size       int
		how        string
		delay      string // before the peer reads
		request    string // bytes that the peer sends first
		long       bool
		want       []string // one of them, in what the peer says
	}{
		{"server closes and ends", "server", small, "close", "0", "0", false, all(small)},
		{"server ends without a close", "server", small, "exit", "0.3", "0", true, all(small)},
		{"server is killed", "server", small, "killed", "0", "0", false, all(small)},
		{"server has sent much", "server", big, "close", "0.7", "0", true, all(big)},
		{"server is a daemon", "server", small, "daemon", "0", "0", true, all(small)},
		{"child of the server sends", "server", small, "fork", "0", "0", true, all(small)},
		{"server does not linger", "server", small, "linger0", "0.5", "0", true, reset},
		{"server leaves data unread", "server", small, "unread", "0.5", "100", false, reset},
		{"client closes and ends", "client", small, "close", "0", "0", false, all(small)},
		{"client ends without a close", "client", small, "exit", "0.3", "0", true, all(small)},
		{"client is killed", "client", small, "killed", "0", "0", true, all(small)},
		{"client has sent much", "client", big, "exit", "0.7", "0", true, all(big)},
		{"client does not wait", "client", small, "nonblock", "0", "0", true, all(small)},
		{"client does not linger", "client", small, "linger0", "0.5", "0", true, reset},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.long && testing.Short() {
				t.Skip("a neighbour of what the short form has")
			}
			l := *l
			l.t = t
			l.noLinkGroups()
			// The first connection is a first contact, whose handshake takes long. The second
			// is not.
			for _, contact := range []string{"first contact", "next contact"} {
				send := []string{"/usr/bin/python3", "-u", "-c", oneShot, c.role, addr, "send", fmt.Sprint(c.size), c.how}
				receive := []string{"/usr/bin/python3", "-u", "-c", oneShot, "client", addr, "receive", c.delay, c.request}
				server, client := send, receive
				if c.role == "client" {
					receive[4] = "server"
					server, client = receive, send
				}
				ps := l.under(l.A, server...)
				if err := ps.WaitOutput("listening", startTime); err != nil {
					t.Fatal(err, ps.Log())
				}
				pc := l.under(l.B, client...)
				receiver := pc
				if c.role == "client" {
					receiver = ps
				}
				_ = receiver.WaitOutput("got ", endTime)
				log := receiver.Log()
				if !slices.ContainsFunc(c.want, func(s string) bool { return strings.Contains(log, s) }) {
					t.Errorf("%s: the peer says %q, want one of %q\n%s\n%s", contact, lastLine(log, "got "), c.want, ps.Log(), pc.Log())
				}
				for _, p := range []*netnstest.Process{ps, pc} {
					_ = p.Wait(endTime)
				}
			}
			// Nothing remains.
			l.wantNoConns(l.A)
			l.wantNoConns(l.B)
		})
	}
}

// noLinkGroups ends the link groups of host A, so that the next connection is a first contact.
func (l *lab) noLinkGroups() {
	l.t.Helper()
	rows, err := l.rows(l.A, "linkgroup")
	if err != nil {
		l.t.Fatal(err)
	}
	for _, r := range rows {
		l.smcr(l.A, "--backend", "user", "linkgroup", "del", fmt.Sprint(r["id"]))
	}
}

// wantNoConns wants the stack of a host to have no connection soon.
func (l *lab) wantNoConns(h *netnstest.Host) {
	l.t.Helper()
	if err := netnstest.Until(settleTime, func() error {
		rows, err := l.rows(h, "connection")
		if err != nil {
			return err
		}
		if len(rows) > 0 {
			return fmt.Errorf("%s has %d connections: %v", h.Name, len(rows), rows)
		}
		return nil
	}); err != nil {
		l.t.Error(err)
	}
}

// TestOneShotStack: a stack with data of a program that has ended does not end, neither
// because it is idle nor because another stack has taken over.
func TestOneShotStack(t *testing.T) {
	const size = 1 << 20
	for _, kind := range []string{"idle", "takeover"} {
		t.Run(kind, func(t *testing.T) {
			l := newLab(t, "/usr/bin/python3")
			stack := l.serve(l.A, "--idle-timeout", "100ms")
			if kind == "takeover" {
				terminate(t, stack)
				stack = l.serve(l.A)
			}
			l.serve(l.B)
			server := l.under(l.A, "/usr/bin/python3", "-u", "-c", oneShot, "server", l.A.Addr(), "send", fmt.Sprint(size), "close")
			if err := server.WaitOutput("listening", startTime); err != nil {
				t.Fatal(err, server.Log())
			}
			// It stops reading before the program can have written all.
			client := l.under(l.B, "/usr/bin/python3", "-u", "-c", oneShot, "client", l.A.Addr(), "receive", "2", "0")
			if err := server.Wait(endTime); err != nil {
				t.Fatal(err, server.Log())
			}
			select {
			case <-client.Done():
				t.Fatal("the server's program waits for the client")
			default:
			}
			if kind == "takeover" {
				terminateLater := l.takeOver(l.A)
				defer terminateLater.Kill()
			}
			want := fmt.Sprintf("got %d True EOF", size)
			if err := client.WaitOutput(want, endTime); err != nil {
				t.Errorf("%v\n%s\n%s", err, client.Log(), stack.Log())
			}
			if err := stack.Wait(endTime); err != nil {
				t.Errorf("the stack does not end afterwards: %v\n%s", err, stack.Log())
			}
		})
	}
}
