// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/userstack/broker"
)

// TestLocalReset: the client of a local connection has reset it before the server accepts
// it. The server is told the same as over TCP.
func TestLocalReset(t *testing.T) {
	needProgram(t, "python3")
	cl := scripted(t, func(s *script) {
		m, _ := s.recv(broker.TypeListen)
		s.send(broker.Message{Type: broker.TypeResult, Seq: m.Seq})
		m, _ = s.recv(broker.TypeAccept)
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			s.t.Error(err)
			return
		}
		defer unix.Close(fds[0])
		defer unix.Close(fds[1])
		if _, err := unix.Write(fds[1], []byte{0}); err != nil {
			s.t.Error(err)
		}
		s.sendWith(broker.Message{Type: broker.TypeLocal, Mode: broker.ModeLocal, Conn: m.Conn, Errno: int32(unix.ECONNRESET)}, fds[1])
	})
	p := start(t, Config{Broker: cl, Argv: []string{"timeout", "60", "python3", "-u", "-c", `
import select, socket
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); print(s.getsockname()[1])
c = s.accept()[0]
p = select.poll(); p.register(c, select.POLLHUP); p.poll() # until the client's end is closed
def ask(f):
    try: return f()
    except OSError as e: return e.errno
print(ask(lambda: c.recv(1)), ask(lambda: c.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)), ask(c.getpeername))`}})
	c, err := net.Dial("tcp4", "127.0.0.1:"+p.line(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	res := p.wait(t)
	if want := "104 0 107\n"; res.out != want || res.status != 0 {
		t.Errorf("status %d, %q, want %q", res.status, res.out, want)
	}
	if res.stats.ByMode[broker.ModeLocal] != 1 || res.stats.Broken != 1 {
		t.Errorf("counted %+v, want one local connection that was reset", res.stats)
	}
}
