// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
)

// fakeEnv makes the test binary a stack of its own process, which serves on the
// socket of that name.
const fakeEnv = "SMCR_LAUNCH_FAKE"

func serveFake(name string) int {
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: name, Net: "unixpacket"})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("serving")
	if err := (&broker.Server{Handler: &fakeStack{}}).Serve(context.Background(), l); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// mortalStack starts a stack in a process of its own and returns a session with
// it, and what kills it.
func mortalStack(t *testing.T) (cl *broker.Client, kill func()) {
	t.Helper()
	name := fmt.Sprintf("@smcr-launch-test-%d-%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-"))
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fakeEnv+"="+name)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// This process waits for this child, so Run must not reap it. Run only reaps
	// processes with a filter.
	kill = func() { _ = cmd.Process.Kill() }
	t.Cleanup(func() {
		kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "serving\n" {
		t.Fatalf("the stack said %q, %v", line, err)
	}
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: name, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	if cl, err = broker.NewClient(t.Context(), c, t.Name()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cl.Close() })
	return cl, kill
}

// peerServer is outside of any launcher and does f with each connection, which
// it then holds until the test ends.
func peerServer(t *testing.T, f func(c *net.TCPConn)) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
			go f(c.(*net.TCPConn))
		}
	}()
	return l.Addr().String()
}

func hold(*net.TCPConn) {}

func pour(c *net.TCPConn) {
	b := make([]byte, 64<<10)
	for {
		if _, err := c.Write(b); err != nil {
			return
		}
	}
}

func half(c *net.TCPConn) {
	_, _ = io.WriteString(c, "hi")
	_ = c.CloseWrite()
}

const mortalProgram = `
import os, select, socket, sys, time
host, port = sys.argv[1].split(':')
s = socket.create_connection((host, int(port)))
def read(s):
    try:
        while True:
            b = s.recv(65536)
            if not b: return 'EOF'
    except BlockingIOError: return 'would block'
    except OSError as e: return e.errno
`

// A stack that is killed cuts connections, which must not look like their end,
// whatever the program does with them.
func TestStackKilled(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	for _, tt := range []struct {
		name    string
		peer    func(*net.TCPConn)
		program string
		want    string
	}{
		{"idle reader", hold, `
print('up'); print(read(s))`, "104\n"},
		{"reader of a stream", pour, `
s.recv(1 << 20); print('up'); print(read(s))`, "104\n"},
		{"data waiting", pour, `
s.recv(1); print('up'); sys.stdin.read(); time.sleep(.3); print(read(s))`, "104\n"},
		{"two", hold, `
t = socket.create_connection((host, int(port)))
print('up'); print(read(s), read(t))`, "104 104\n"},
		{"non-blocking", hold, `
s.setblocking(False)
e = select.epoll(); e.register(s, select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET)
assert read(s) == 'would block'
print('up')
for fd, ev in e.poll(20): print(bool(ev & select.EPOLLIN), read(s))`, "True 104\n"},
		{"writer that waits", hold, `
print('up')
try:
    while True: s.send(b'x' * 65536)
except OSError as e: print(e.errno in (32, 104))`, "True\n"},
		{"writer, then reader", hold, `
s.send(b'x'); print('up'); print(read(s))
try: s.send(b'x')
except OSError as e: print(e.errno)`, "104\n32\n"},
		{"child", hold, `
if os.fork() == 0:
    print('up'); print(read(s)); sys.exit()
s.close(); os.wait()`, "104\n"},
		{"duplicate in a child of a child", hold, `
if os.fork() == 0:
    if os.fork() == 0:
        t = s.dup(); s.close()
        print('up'); print(read(t))
    s.close(); os._exit(0)
s.close(); os.wait()`, "104\n"},
		{"SO_ERROR", hold, `
print('up'); p = select.poll(); p.register(s, 0); p.poll(60000)
print(s.getsockopt(1, 4), s.getsockopt(1, 4))`, "104 0\n"},
		{"after the peer's end", half, `
assert read(s) == 'EOF'
print('up'); p = select.poll(); p.register(s, 0); p.poll(60000)
print(read(s), s.getsockopt(1, 4))
try: s.send(b'x')
except OSError as e: print(e.errno)`, "EOF 0\n32\n"},
		{"after the own end", hold, `
s.shutdown(1); print('up'); print(read(s)); print(s.getsockopt(1, 4))`, "EOF\n104\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			addr := peerServer(t, tt.peer)
			cl, kill := mortalStack(t)
			p := start(t, Config{Broker: cl, Argv: []string{"python3", "-u", "-c", mortalProgram + tt.program, addr}})
			if got := p.line(t); got != "up" {
				t.Fatal(got)
			}
			time.Sleep(100 * ms) // until it waits
			begin := time.Now()
			kill()
			res := p.wait(t)
			if res.out != tt.want || res.status != 0 {
				t.Errorf("status %d, %q, want %q", res.status, res.out, tt.want)
			}
			t.Logf("over within %v", time.Since(begin).Round(ms))
		})
	}
}

// A program that is done with its connections leaves the launcher no
// descriptors of theirs, nor are they too many for it.
func TestEndCopiesClosed(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	addr := echoServer(t, "tcp4", "127.0.0.1:0", "")
	cl, kill := mortalStack(t)
	fds := socktest.OpenFiles(t)
	p := start(t, Config{Broker: cl, Argv: []string{"python3", "-u", "-c", mortalProgram + `
for i in range(300):
    t = socket.create_connection((host, int(port)))
    t.sendall(b'x'); assert t.recv(1) == b'x'
    if i % 3 == 1: t.shutdown(1); assert t.recv(1) == b''
    if i % 3 == 2: t.shutdown(2)
    t.close()
print('closed'); print(read(s))`, addr}})
	if got := p.line(t); got != "closed" {
		t.Fatal(got)
	}
	const own = 20 // what a launch needs
	until(t, fmt.Sprintf("descriptors of connections are closed, %d were open before", fds), func() bool { return socktest.OpenFiles(t) <= fds+own })
	kill()
	if res := p.wait(t); res.out != "104\n" {
		t.Errorf("%q", res.out)
	}
}

// A service that ends a session but still runs may read from a pair: the
// launcher writes nothing into the pair until the service has released it.
func TestMarkUnread(t *testing.T) {
	testkind.System(t)
	s := &supervisor{ctx: t.Context(), log: slog.New(slog.DiscardHandler), sockets: newSockets(), endCopies: budget{max: 1}, looks: newLooks(t.Context())}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	var st unix.Stat_t
	if err := unix.Fstat(fds[0], &st); err != nil {
		t.Fatal(err)
	}
	service, err := unix.FcntlInt(uintptr(fds[1]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := &conn{s: s, broker: (&fakeStack{t: t}).client(), pair: &pair{app: -1, end: fds[1], inode: st.Ino}, at: endPlace{os.Getpid(), fds[0]}}
	c.keepEnd()
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.sessionEnded()
	}()
	var b [1]byte
	for begin := time.Now(); time.Since(begin) < 200*ms; time.Sleep(10 * ms) {
		if _, _, err := unix.Recvfrom(service, b[:], unix.MSG_DONTWAIT); err != unix.EAGAIN {
			t.Fatalf("the service reads: %v", err)
		}
	}
	if err := broker.MarkUnread(service); err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(service); err != nil {
		t.Fatal(err)
	}
	<-done
	if _, _, err := unix.Recvfrom(fds[0], b[:], unix.MSG_DONTWAIT); err != unix.ECONNRESET {
		t.Errorf("the program reads: %v", err)
	}
	if n := s.endCopies.n.Load(); n != 0 {
		t.Errorf("%d copies of ends left", n)
	}
}

// Further connections have no copy of the end.
func TestEndCopiesLimit(t *testing.T) {
	testkind.System(t)
	s := &supervisor{ctx: t.Context(), log: slog.New(slog.DiscardHandler), sockets: newSockets(), endCopies: budget{max: 1}, looks: newLooks(t.Context())}
	for i, want := range []bool{true, false} {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fds[0])
		c := &conn{s: s, cc: &broker.ClientConn{}, pair: &pair{app: -1, end: fds[1]}}
		c.keepEnd()
		if got := c.pair.end >= 0; got != want {
			t.Errorf("connection %d: copy of the end %v, want %v", i, got, want)
		}
		defer c.drop()
	}
	if got := s.endCopies.n.Load(); got != 1 {
		t.Errorf("%d copies of ends, want 1", got)
	}
}

// What accepted connections became is counted though the program has ended
// before the launcher took note of it.
func TestCountedAtEnd(t *testing.T) {
	testkind.System(t)
	addr := echoServer(t, "tcp4", "127.0.0.1:0", "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cl := (&fakeStack{t: t}).client()
	s := &supervisor{ctx: ctx, log: slog.New(slog.DiscardHandler), stats: newCounters(), sockets: newSockets(), endCopies: budget{max: 1}, looks: newLooks(t.Context())}
	const conns = 20
	for range conns {
		func() {
			sa, family, remote := sockaddrOf(addr)
			sock, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer unix.Close(sock)
			if err := unix.Connect(sock, sa); err != nil {
				t.Fatal(err)
			}
			cc, err := cl.Accept(sock, localAddr(sock), remote)
			if err != nil {
				t.Fatal(err)
			}
			select {
			case ev := <-cc.Events():
				if ev.Kind != broker.EventTaken {
					t.Fatalf("%+v, want the connection taken", ev)
				}
			case <-time.After(patience):
				t.Fatal("no word from the service")
			}
			c := &conn{s: s, cc: cc, unready: true}
			if c.pair, err = newPair(sock, false, false); err != nil {
				t.Fatal(err)
			}
			defer c.pair.closeApp()
			if err := cc.Attach(c.pair.end); err != nil {
				t.Fatal(err)
			}
			c.keepEnd()
			if err := echo(c.pair.app, "carried"); err != nil {
				t.Fatal(err)
			}
			c.carried()
		}()
	}
	if got := s.snapshot().ByMode[broker.ModeSMCR]; got != conns {
		t.Errorf("%d connections counted, want %d", got, conns)
	}
}
