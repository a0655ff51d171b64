// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"regexp"
	"strconv"
	"testing"

	"smcr/internal/testing/netnstest"
)

const wireServer = `
import hashlib, socket, sys
l = socket.create_server((sys.argv[1], 7500))
print('listening', flush=True)
while True:
    c, _ = l.accept()
    try:
        n, h = 0, hashlib.sha256()
        while d := c.recv(1 << 16):
            n += len(d)
            h.update(d)
        c.sendall(b'%d %s' % (n, h.hexdigest().encode()))
        print('answered', n, flush=True)
    except OSError as e:
        print('failed', e.errno, flush=True)
    c.close()
`

// wireServer starts wireServer under smcr run on a host, and waits until it listens at the host's address.
func (l *lab) wireServer(h *netnstest.Host) *netnstest.Process {
	l.t.Helper()
	server := l.under(h, "/usr/bin/python3", "-u", "-c", wireServer, h.Addr())
	if err := server.WaitOutput("listening", startTime); err != nil {
		l.t.Fatal(err, server.Log())
	}
	return server
}

const wireClient = `
import hashlib, os, socket, struct, sys
def reset(c):
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    c.close()
host, kind = sys.argv[1:]
if kind == 'refused':
    print('connect_ex', socket.socket().connect_ex((host, 7501)))
elif kind == 'reset':
    c = socket.create_connection((host, 7500))
    c.sendall(b'x')
    reset(c)
    print('reset')
else:
    c = socket.create_connection((host, 7500))
    d = os.urandom(3 << 20)
    names = c.getsockname()[0], c.getpeername()
    c.sendall(d)
    c.shutdown(socket.SHUT_WR)
    a = b''
    while p := c.recv(99):
        a += p
    print('right' if a == b'%d %s' % (len(d), hashlib.sha256(d).hexdigest().encode()) else a)
    print('error', c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), *names)
`

var fallbacksRE = regexp.MustCompile(`TCP fallback +(\d+)`)

// TestWireEnds has programs that end their streams and reset their connections, over SMC-R, with a peer
// that declines, and with one that knows nothing of SMC: they see the same each time.
func TestWireEnds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name           string
		client, server []string // flags of the stack; nil: none
		smc            bool
		fallbacks      int // connections that the stack of the client counts as TCP
	}{
		{"over SMC-R", []string{}, []string{}, true, 0},
		{"declined", []string{"--roce", "v2"}, []string{"--roce", "v1"}, false, 2}, // the second one is not announced
		{"no peer", []string{}, nil, false, 2},
		{"no client", nil, []string{}, false, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, "/usr/bin/python3", "tshark")
			l.bare = true
			if test.server != nil {
				l.serve(l.A, test.server...)
			}
			if test.client != nil {
				l.serve(l.B, test.client...)
			}
			server := l.wireServer(l.A)
			w := l.watch()
			for _, c := range []struct{ kind, prints, server string }{
				{"half", "right\nerror 0 " + l.B.Addr() + " ('" + l.A.Addr() + "', 7500)\n", "answered 3145728"},
				{"reset", "reset\n", "failed 104"},
				{"refused", "connect_ex 111\n", ""},
			} {
				out, err := l.B.Output(t.Context(), "/usr/bin/python3", "-c", wireClient, l.A.Addr(), c.kind)
				if err != nil || out != c.prints {
					t.Errorf("%s: the client printed %q, %v; want %q", c.kind, out, err, c.prints)
				}
				if err := server.WaitOutput(c.server, startTime); err != nil {
					t.Errorf("%s: %v", c.kind, err)
				}
			}
			s := w.stop(t)
			if got := s.roce.Payload > 3<<20; got != test.smc {
				t.Errorf("%d bytes over RoCE", s.roce.Payload)
			}
			if test.client == nil {
				return
			}
			out := l.smcr(l.B, "stats", "show")
			if m := fallbacksRE.FindStringSubmatch(out); m == nil || m[1] != strconv.Itoa(test.fallbacks) {
				t.Errorf("want %d connections that became TCP:\n%s", test.fallbacks, out)
			}
			l.wantNoConnections(l.B)
		})
	}
}
