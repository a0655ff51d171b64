// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
)

// script is a service whose messages a test sends one by one.
type script struct {
	t *testing.T
	c *net.UnixConn
}

// scripted opens a session with a service, whose messages play sends. The session
// and the script that play gets stay open until the test ends.
func scripted(t *testing.T, play func(s *script)) *broker.Client {
	t.Helper()
	ours, theirs := sessionPair(t)
	s := &script{t, ours}
	var wg sync.WaitGroup
	wg.Go(func() {
		if m, _ := s.recv(broker.TypeHello); m.Type == broker.TypeHello {
			s.send(broker.Message{Type: broker.TypeWelcome, Size: broker.Version})
			play(s)
		}
	})
	cl, err := broker.NewClient(t.Context(), theirs, t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = ours.Close()
		wg.Wait()
		_ = cl.Close()
	})
	return cl
}

// sessionPair returns the two ends of a connection for a session.
func sessionPair(t testing.TB) (service, launcher *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn := func(fd int) *net.UnixConn {
		file := os.NewFile(uintptr(fd), "broker")
		defer file.Close()
		c, err := net.FileConn(file)
		if err != nil {
			t.Fatal(err)
		}
		return c.(*net.UnixConn)
	}
	return conn(fds[0]), conn(fds[1])
}

// recv waits for a message of the type. It returns the message and its descriptor, or
// nil. If the test has failed, it returns a zero message.
func (s *script) recv(want broker.Type) (broker.Message, *broker.Descriptor) {
	_ = s.c.SetReadDeadline(time.Now().Add(patience))
	b, oob := make([]byte, broker.MaxMessage), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := s.c.ReadMsgUnix(b, oob)
	if err != nil {
		s.t.Errorf("no %v: %v", want, err)
		return broker.Message{}, nil
	}
	m, err := broker.ParseMessage(b[:n])
	if err != nil || m.Type != want {
		s.t.Errorf("%v instead of %v, %v", m.Type, want, err)
		return broker.Message{}, nil
	}
	if oobn == 0 {
		return m, nil
	}
	cmsgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		s.t.Error(err)
		return m, nil
	}
	fds, err := unix.ParseUnixRights(&cmsgs[0])
	if err != nil {
		s.t.Error(err)
		return m, nil
	}
	d := broker.NewDescriptor(fds[0])
	s.t.Cleanup(func() { _ = d.Close() })
	return m, d
}

func (s *script) send(m broker.Message) { s.sendWith(m) }

// sendWith sends a message with descriptors.
func (s *script) sendWith(m broker.Message, fds ...int) {
	b, err := m.AppendBinary(nil)
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if err == nil {
		_, _, err = s.c.WriteMsgUnix(b, oob, nil)
	}
	if err != nil {
		s.t.Errorf("%v: %v", m.Type, err)
	}
}

// deaf makes the launcher's next message fail, while it still gets the
// service's: a session that is lost at that very point.
func (s *script) deaf() {
	if err := s.c.CloseRead(); err != nil {
		s.t.Error(err)
	}
}

// connect plays a connect() up to Proceed and returns the connection's number.
func (s *script) connect() uint64 {
	m, sock := s.recv(broker.TypeConnect)
	if sock == nil {
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := testConnector.Connect(ctx, sock, m.Remote); err != nil {
		s.t.Error(err)
	}
	s.send(broker.Message{Type: broker.TypeEstablished, Conn: m.Conn, Flags: broker.FlagPeerSMC})
	s.recv(broker.TypeProceed)
	return m.Conn
}

// If the service does not get a pair, or does not read from it, the program, for which
// the connection is already made, sees a reset and not an end of file, unless the
// launcher can carry the connection over TCP.
func TestUnattached(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	ready := func(s *script, mode broker.Mode) {
		id := s.connect()
		s.deaf()
		s.send(broker.Message{Type: broker.TypeReady, Conn: id, Mode: mode})
	}
	lost := func(s *script) { ready(s, broker.ModeSMCR) }
	attached := func(s *script) (uint64, *broker.Descriptor) {
		id := s.connect()
		s.send(broker.Message{Type: broker.TypeReady, Conn: id, Mode: broker.ModeSMCR})
		_, end := s.recv(broker.TypeAttach)
		return id, end
	}
	const (
		prologue = `
import select, socket, sys
def read(s):
    try: return s.recv(1)
    except OSError as e: return e.errno
def to(s): return s.connect_ex((sys.argv[1].split(':')[0], int(sys.argv[1].split(':')[1])))
s = socket.socket()
`
		nonblocking = "s.setblocking(False); to(s); select.select([], [s], [], 10)\n"
	)
	for _, tt := range []struct {
		name    string
		play    func(s *script)
		program string
		want    string
	}{
		{"session lost before Attach", lost, "print(to(s), read(s), s.getsockopt(1, 4))", "0 104 0\n"},
		{"session lost before Attach, non-blocking", lost, nonblocking + "s.setblocking(True); print(read(s))", "104\n"},
		{"session lost before Attach, SO_ERROR", lost,
			"r = to(s); p = select.poll(); p.register(s, 0); p.poll(60000); print(r, s.getsockopt(1, 4), s.getsockopt(1, 4))", "0 104 0\n"},
		{"session lost before Attach, declined", func(s *script) { ready(s, broker.ModeTCP) },
			nonblocking + "s.send(b'x'); s.setblocking(True); print(read(s))", "b'x'\n"},
		{"given up before Attach", func(s *script) {
			id, end := attached(s)
			_ = end.Close()
			s.send(broker.Message{Type: broker.TypeClosed, Conn: id, Errno: int32(syscall.ECONNRESET)})
		}, "print(to(s), read(s))", "0 104\n"},
		{"released without an end of file", func(s *script) {
			id, end := attached(s)
			_ = end.Control(broker.MarkUnread)
			_ = end.Close()
			s.send(broker.Message{Type: broker.TypeClosed, Conn: id})
		}, "print(to(s), read(s))", "0 104\n"},
		{"released after the end of file", func(s *script) {
			id, end := attached(s)
			_ = end.Control(func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) })
			_ = end.Control(broker.MarkUnread)
			_ = end.Close()
			s.send(broker.Message{Type: broker.TypeClosed, Conn: id})
		}, "print(to(s), read(s))", "0 b''\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			addr := echoServer(t, "tcp4", "127.0.0.1:0", "")
			res := launchedWith(t, t.Context(), Config{
				Broker: scripted(t, tt.play), Argv: []string{"timeout", "60", "python3", "-u", "-c", prologue + tt.program, addr},
			}, "")
			if res.out != tt.want || res.status != 0 {
				t.Errorf("status %d, %q, want %q", res.status, res.out, tt.want)
			}
		})
	}
	t.Run("accept, refused", func(t *testing.T) {
		cl := scripted(t, func(s *script) {
			m, _ := s.recv(broker.TypeListen)
			s.send(broker.Message{Type: broker.TypeResult, Seq: m.Seq})
			m, sock := s.recv(broker.TypeAccept)
			_ = sock.Close()
			s.send(broker.Message{Type: broker.TypeFailed, Conn: m.Conn, Errno: int32(syscall.ECONNRESET)})
		})
		p := start(t, Config{Broker: cl, Argv: []string{"timeout", "60", "python3", "-u", "-c", prologue + `
s.bind(('127.0.0.1', 0)); s.listen(); print(s.getsockname()[1])
print(read(s.accept()[0]))`}})
		c, err := net.Dial("tcp4", "127.0.0.1:"+p.line(t))
		reset := errors.Is(err, syscall.ECONNRESET) // before Dial returned
		if err != nil && !reset {
			t.Fatal(err)
		}
		if res := p.wait(t); res.out != "104\n" || res.status != 0 {
			t.Errorf("status %d, %q", res.status, res.out)
		}
		if !reset {
			defer c.Close()
			wantClientReset(t, c.(*net.TCPConn))
		}
	})
	t.Run("accept", func(t *testing.T) {
		cl := scripted(t, func(s *script) {
			m, _ := s.recv(broker.TypeListen)
			s.send(broker.Message{Type: broker.TypeResult, Seq: m.Seq})
			m, _ = s.recv(broker.TypeAccept)
			s.deaf()
			s.send(broker.Message{Type: broker.TypeTaken, Conn: m.Conn})
		})
		p := start(t, Config{Broker: cl, Argv: []string{"timeout", "60", "python3", "-u", "-c", prologue + `
s.bind(('127.0.0.1', 0)); s.listen(); print(s.getsockname()[1])
print(read(s.accept()[0]))`}})
		c, err := net.Dial("tcp4", "127.0.0.1:"+p.line(t))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		// The peer got no answer yet, so the launcher can carry the connection.
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if res := p.wait(t); res.out != "b'x'\n" || res.status != 0 {
			t.Errorf("status %d, %q", res.status, res.out)
		}
	})
}
