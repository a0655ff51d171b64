// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
)

// mortal is a session whose service counts as dead as soon as the session is over. In
// these tests the service is part of this process.
type mortal struct{ *broker.Client }

func (m mortal) Dead() <-chan struct{} { return m.Done() }

// stacks are those that a launcher finds one after the other.
type stacks struct {
	t     *testing.T
	dials atomic.Int64

	mu     sync.Mutex
	next   *fakeStack // nil: there is none
	end    func()     // ends the last session
	server *broker.Server
}

func (x *stacks) open(f *fakeStack) (mortal, error) {
	f.t = x.t
	ours, theirs := sessionPair(x.t)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	server := &broker.Server{Handler: f}
	x.server = server
	wg.Go(func() { _ = server.ServeConn(ctx, ours) })
	x.end = func() { cancel(); wg.Wait() }
	x.t.Cleanup(x.end)
	cl, err := broker.NewClient(ctx, theirs, x.t.Name())
	return mortal{cl}, err
}

func (x *stacks) redial(context.Context) (Session, error) {
	x.dials.Add(1)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.next == nil {
		return nil, errors.New("no stack")
	}
	m, err := x.open(x.next)
	x.next = nil
	return m, err
}

func (x *stacks) provide(f *fakeStack) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.next = f
}

func (x *stacks) kill() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.end()
}

func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for begin := time.Now(); !cond(); time.Sleep(5 * ms) {
		if time.Since(begin) > patience {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// obedient is a server that does what is asked of it: echo, connect elsewhere,
// listen at another port, leave its sockets to a child, end.
const obedient = `
import os, socket, sys, threading
host, port = sys.argv[1].split(':')
def listener():
    s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()
    threading.Thread(target=serve, args=(s,)).start()
    return b'%d\n' % s.getsockname()[1]
def serve(s):
    while True:
        c = s.accept()[0]
        b = c.recv(1)
        if b == b'l': b = listener()
        if b == b'q': os._exit(0)
        if b == b'o':
            o = socket.create_connection((host, int(port)), 60)
            o.sendall(b); b = o.recv(1); o.close()
        c.sendall(b); c.close()
print(listener().decode(), end='')
`

// ask has the obedient server at a port do something and returns its answer.
func ask(t *testing.T, port, what string) string {
	t.Helper()
	c, err := net.Dial("tcp4", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, what); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(c)
	if err != nil && what != "q" {
		t.Fatalf("%q: %v", what, err)
	}
	return strings.TrimSpace(string(b))
}

// A program whose stack ends makes and takes connections over TCP, and uses the
// next one, and the one after it, in which all its listening sockets are marked
// without its doing.
func TestNextStack(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	x := &stacks{t: t}
	f := &fakeStack{}
	m, err := x.open(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	p := start(t, Config{Broker: m, Redial: x.redial, Argv: []string{
		"timeout", "120", "python3", "-u", "-c", obedient, echoServer(t, "tcp4", "127.0.0.1:0", "")}})
	ports := []string{p.line(t)}
	for n := range 3 {
		if n > 0 {
			f = &fakeStack{}
			x.provide(f)
			until(t, "listening sockets marked", func() bool { return f.listens.Load() == int64(len(ports)) })
		}
		for _, port := range ports {
			for _, what := range []string{"e", "o"} {
				if got := ask(t, port, what); got != what {
					t.Errorf("stack %d: %q", n, got)
				}
			}
		}
		if a, c := f.accepts.Load(), f.connects.Load(); a != 2*int64(len(ports)) || c != int64(len(ports)) {
			t.Errorf("stack %d: %d connections accepted and %d made with %d ports", n, a, c, len(ports))
		}
		x.kill()
		for _, what := range []string{"e", "o"} {
			if got := ask(t, ports[0], what); got != what {
				t.Errorf("after stack %d: %q", n, got)
			}
		}
		ports = append(ports, ask(t, ports[0], "l"))
	}
	// Nobody asks for anything: the launcher seldom looks.
	time.Sleep(200 * ms)
	before, begin := x.dials.Load(), time.Now()
	time.Sleep(time.Second)
	n, d := x.dials.Load()-before, time.Since(begin)
	if float64(n) > 6*d.Seconds() {
		t.Errorf("%d looks for a stack in %v", n, d)
	}
	ask(t, ports[0], "q")
	res := p.wait(t)
	// Before each "l", "e" and "o" came without a stack, and the "l" of course.
	if got := res.stats.TCP[ReasonNoService]; got < 3*4 {
		t.Errorf("%d connections without a stack, want at least 12: %v", got, res.stats.TCP)
	}
}

// A connect() under way when the stack ends ends in a TCP connection, wherever
// the stack was.
func TestConnectAfresh(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	established := func(s *script) (id uint64) {
		m, sock := s.recv(broker.TypeConnect)
		if sock == nil {
			return 0
		}
		if err := testConnector.Connect(context.Background(), sock, m.Remote); err != nil {
			s.t.Error(err)
		}
		return m.Conn
	}
	const programs = `
import select, socket, sys
host, port = sys.argv[1].split(':')
s = socket.socket()
def talk():
    s.setblocking(True); s.settimeout(60)
    s.sendall(b'x'); print(s.recv(2), s.getsockopt(1, 4), s.getpeername()[1] == int(port))
`
	for name, play := range map[string]func(s *script){
		"before it connected": func(s *script) { s.recv(broker.TypeConnect) },
		"before it told":      func(s *script) { established(s) },
		"before the handshake": func(s *script) {
			s.send(broker.Message{Type: broker.TypeEstablished, Conn: established(s), Flags: broker.FlagPeerSMC})
		},
		"in the handshake": func(s *script) { s.connect() },
		"gave up": func(s *script) {
			s.send(broker.Message{Type: broker.TypeClosed, Conn: s.connect()})
			time.Sleep(time.Second)
		},
		"late": func(s *script) {
			s.recv(broker.TypeConnect)
			time.Sleep(3 * holdTime)
		},
	} {
		for how, program := range map[string]string{
			"blocking":     "print(s.connect_ex((host, int(port)))); talk()",
			"non-blocking": "s.setblocking(False); s.connect_ex((host, int(port))); print(len(select.select([], [s], [], 60)[1]) - 1); talk()",
			"poll only": "s.setblocking(False); s.connect_ex((host, int(port))); print(len(select.select([], [s], [], 60)[1]) - 1); s.setblocking(True); s.settimeout(60)\n" +
				"s.sendall(b'x'); print(s.recv(2), 0, True)",
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				cl := scripted(t, func(s *script) {
					play(s)
					_ = s.c.Close()
				})
				res := launchedWith(t, t.Context(), Config{
					Broker: mortal{cl}, Argv: []string{"timeout", "60", "python3", "-u", "-c", programs + program, echoServer(t, "tcp4", "127.0.0.1:0", "")},
				}, "")
				if want := "0\nb'x' 0 True\n"; res.out != want || res.status != 0 {
					t.Errorf("status %d, %q, want %q", res.status, res.out, want)
				}
				if got := res.stats.TCP[ReasonNoService]; got != 1 {
					t.Errorf("counted %+v", res.stats)
				}
			})
		}
	}
}

// A connection that the program has accepted when the stack ends in the CLC
// handshake goes on over TCP, unless the stack accepted SMC already.
func TestTakeBack(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	for _, tt := range []struct {
		name  string
		begin string                          // what the peer sends first
		play  func(*script, int) error        // with the TCP socket
		peer  func(c *bufio.ReadWriter) error // after the stack's end
		want  string
	}{
		{"plain peer", "x", nil, nil, "b'x'\n"},
		{"PROPOSAL unread", proposal(t, false), nil, wantDecline(1), "b'y'\n"},
		{"PROPOSAL of version 2 unread", proposal(t, true), nil, wantDecline(2), "b'y'\n"},
		{"PROPOSAL read", proposal(t, false), readAll(t), wantDecline(1), "b'y'\n"},
		{"accepted", proposal(t, false), func(s *script, sock int) error {
			return errors.Join(readAll(t)(s, sock), sendByte(sock))
		}, nil, "104\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cl := scripted(t, func(s *script) {
				m, _ := s.recv(broker.TypeListen)
				s.send(broker.Message{Type: broker.TypeResult, Seq: m.Seq})
				m, sock := s.recv(broker.TypeAccept)
				s.send(broker.Message{Type: broker.TypeTaken, Conn: m.Conn})
				_, end := s.recv(broker.TypeAttach)
				if sock == nil || end == nil {
					return
				}
				if tt.play != nil {
					if err := sock.Control(func(fd int) error { return tt.play(s, fd) }); err != nil {
						s.t.Error(err)
					}
				}
				_ = sock.Close()
				_ = end.Close()
				_ = s.c.Close()
			})
			p := start(t, Config{Broker: mortal{cl}, Argv: []string{"timeout", "60", "python3", "-u", "-c", `
import socket
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); print(s.getsockname()[1])
c = s.accept()[0]
try: print(c.recv(9)); c.sendall(b'z')
except OSError as e: print(e.errno)`}})
			c, err := net.Dial("tcp4", "127.0.0.1:"+p.line(t))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			if _, err := io.WriteString(c, tt.begin); err != nil {
				t.Fatal(err)
			}
			if tt.peer != nil {
				rw := bufio.NewReadWriter(bufio.NewReader(c), bufio.NewWriter(c))
				if err := tt.peer(rw); err != nil {
					t.Error(err)
				}
			}
			if res := p.wait(t); res.out != tt.want || res.status != 0 {
				t.Errorf("status %d, %q, want %q", res.status, res.out, tt.want)
			}
			if tt.want == "104\n" {
				if _, err := io.ReadAll(c); err == nil {
					t.Error("the peer sees an end in good order")
				}
			}
		})
	}
}
