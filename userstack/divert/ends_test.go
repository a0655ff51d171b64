// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// connect returns both programs' ends of a new connection.
func (b *bed) connect(l net.Listener) (client, server *net.TCPConn) {
	b.t.Helper()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := l.Accept()
		accepted <- c
	}()
	client = b.dial(l)
	c := <-accepted
	if c == nil {
		b.t.Fatal("nothing was accepted")
	}
	b.t.Cleanup(func() { c.Close() })
	return client, c.(*net.TCPConn)
}

// wantTaken checks how many connections the hosts took.
func (b *bed) wantTaken(a, c int64) {
	b.t.Helper()
	if x, y := b.taken[0].Load(), b.taken[1].Load(); x != a || y != c {
		b.t.Errorf("the hosts took %d and %d connections, want %d and %d", x, y, a, c)
	}
}

// gone waits until neither host knows of a connection.
func (b *bed) gone() {
	b.t.Helper()
	testkind.Eventually(b.t, "nothing is left of the connections", func() (any, bool) {
		left := left(b.d[0]) + left(b.d[1])
		return left, left == ""
	})
}

// left says what a Diverter knows of connections.
func left(d *Diverter) (left string) {
	d.mu.Lock()
	for t := range d.flows {
		left += t.String() + " "
	}
	d.mu.Unlock()
	if n := d.slots(); n != 0 {
		left += fmt.Sprintf("%d undecided ", n)
	}
	var key bpfTuple
	var k bpfFlow
	for all := d.bpf.Flows.Iterate(); all.Next(&key, &k); {
		left += "(" + tupleOf(key).String() + ") "
	}
	var w bpfWay
	for all := d.bpf.Ways.Iterate(); all.Next(&key, &w); {
		left += "[" + tupleOf(key).String() + "] "
	}
	var uid uint32
	var had bpfCount
	for all := d.bpf.Users.Iterate(); all.Next(&uid, &had); {
		var removed bpfCount
		_ = d.bpf.Removed.Lookup(uid, &removed)
		if had != removed {
			left += fmt.Sprintf("a count of user %d: %v-%v ", uid, had, removed)
		}
	}
	var total, removed uint64
	_ = d.bpf.Total.Lookup(uint32(0), &total)
	_ = d.bpf.States.Lookup(stateRemoved, &removed)
	if total != removed {
		left += fmt.Sprintf("a count of all: %d-%d ", total, removed)
	}
	return left
}

// TestEnds has every way to end a connection.
func TestEnds(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	l := b.listen(b.B.Addr())
	say := func(c *net.TCPConn, text string) {
		t.Helper()
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
	}
	hear := func(c *net.TCPConn, want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(c, got); err != nil || string(got) != want {
			t.Fatalf("got %q, %v; want %q", got, err, want)
		}
	}
	end := func(c *net.TCPConn) {
		t.Helper()
		if n, err := c.Read(make([]byte, 9)); n != 0 || err != io.EOF {
			t.Fatalf("read %d bytes, %v; want the end of the stream", n, err)
		}
	}
	resets := func(c *net.TCPConn) {
		t.Helper()
		if _, err := c.Read(make([]byte, 9)); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("read: %v, want ECONNRESET", err)
		}
	}
	for _, test := range []struct {
		name string
		run  func(client, server *net.TCPConn)
	}{
		{"server speaks first", func(client, server *net.TCPConn) {
			say(server, "hello")
			hear(client, "hello")
			say(client, "bye")
			hear(server, "bye")
			server.Close()
			end(client)
		}},
		{"client closes first", func(client, server *net.TCPConn) {
			say(client, "hello")
			client.Close()
			hear(server, "hello")
			end(server)
		}},
		{"client ends its stream", func(client, server *net.TCPConn) {
			say(client, "question")
			_ = client.CloseWrite()
			hear(server, "question")
			end(server)
			say(server, "answer")
			server.Close()
			hear(client, "answer")
			end(client)
		}},
		{"server ends its stream", func(client, server *net.TCPConn) {
			_ = server.CloseWrite()
			end(client)
			say(client, "still here")
			hear(server, "still here")
			client.Close()
			end(server)
		}},
		{"client resets", func(client, server *net.TCPConn) {
			say(server, "hello")
			hear(client, "hello")
			_ = client.SetLinger(0)
			client.Close()
			resets(server)
		}},
		{"server resets", func(client, server *net.TCPConn) {
			_ = server.SetLinger(0)
			server.Close()
			resets(client)
		}},
		{"client closes with unread data", func(client, server *net.TCPConn) {
			say(server, "unread")
			testkind.Eventually(t, "the data is at the client", func() (any, bool) {
				n := socktest.Ioctl(t, client, unix.SIOCINQ)
				return n, n == len("unread")
			})
			client.Close()
			resets(server)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			client, server := b.connect(l)
			test.run(client, server)
			client.Close()
			server.Close()
		})
	}
	b.gone()
	b.wantTaken(7, 7)
}

// TestPlain has connections that must stay what they are.
func TestPlain(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	l := b.listen(b.B.Addr())
	hello := func() {
		t.Helper()
		client, server := b.connect(l)
		go func() {
			_, _ = io.Copy(server, server)
			server.Close()
		}()
		if _, err := io.WriteString(client, "hello"); err != nil {
			t.Fatal(err)
		}
		_ = client.CloseWrite()
		if got, err := io.ReadAll(client); err != nil || string(got) != "hello" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	b.must(b.d[1].Detach(ownCgroup(t)))
	hello() // the server does not announce
	b.must(b.d[1].Attach(ownCgroup(t), Does{Connect: true, Accept: false}))
	hello() // only what it connects would
	b.wantTaken(0, 0)
	b.wantCount(smc.DiagPeerNoSMC, 2)
	b.must(b.d[1].Attach(ownCgroup(t), Does{Connect: false, Accept: true}))
	hello()
	b.wantTaken(1, 1)
	b.must(b.d[0].Detach(ownCgroup(t)))
	hello() // the client does not announce
	b.wantTaken(1, 1)
	b.must(b.d[0].Attach(ownCgroup(t), Does{Connect: true, Accept: true}))
	l.Close()
	b.must(b.A.Do(func() error {
		if _, err := net.Dial("tcp", l.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("dial: %v, want ECONNREFUSED", err)
		}
		return nil
	}))
	b.wantTaken(1, 1)
	b.wantCount(0, 1) // refused
	b.wantCount(smc.DiagPeerNoSMC, 2)
	b.gone()
}

// wantCount checks how many connections of the client are TCP for a reason.
func (b *bed) wantCount(why smc.Diagnosis, want uint64) {
	b.t.Helper()
	all, err := b.d[0].Counts()
	var n uint64
	for _, c := range all {
		if c.Why == why {
			n += c.N
		}
	}
	if n != want || err != nil {
		b.t.Errorf("counts: %+v, %v; want %d of %#x", all, err, want, uint32(why))
	}
}

// TestMany has connections at the same time, and one after the other.
func TestMany(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	l := b.listen(b.B.Addr())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	const at, each = 20, 20
	var wg sync.WaitGroup
	for range at {
		wg.Go(func() {
			for range each {
				c := b.dial(l)
				_, err := io.WriteString(c, "hello")
				_ = c.CloseWrite()
				got, rerr := io.ReadAll(c)
				if err != nil || rerr != nil || string(got) != "hello" {
					t.Errorf("wrote: %v; got %q, %v", err, got, rerr)
				}
				c.Close()
			}
		})
	}
	wg.Wait()
	b.wantTaken(at*each, at*each)
	b.gone()
}

// TestUndecided has a handshake that takes longer than TCP's first retransmission: the programs wait,
// and the peer's kernel hears of nothing.
func TestUndecided(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	hold := make(chan struct{})
	b := newBed(t, func(b *bed, f *Flow) {
		if err := agree(f); err != nil {
			b.t.Error(err)
		}
		if f.Role == smc.Client {
			<-hold
		}
		if err := f.Splice(); err != nil {
			b.t.Error(err)
		}
	})
	l := b.listen(b.B.Addr())
	capture := b.B.StartCapture(t, netnstest.CaptureOptions{Filter: "tcp[tcpflags] & tcp-syn != 0"})
	connected := make(chan struct{})
	var client, server *net.TCPConn
	socket := make(chan syscall.RawConn, 1)
	b.control = func(_, _ string, c syscall.RawConn) error {
		socket <- c
		return nil
	}
	go func() {
		defer close(connected)
		client, server = b.connect(l)
	}()
	rc := <-socket
	testkind.Eventually(t, "the client has sent SYN again, twice", func() (any, bool) {
		n := 0
		_ = rc.Control(func(fd uintptr) {
			if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
				n = int(info.Total_retrans)
			}
		})
		return n, n >= 2
	})
	select {
	case <-connected:
		t.Fatal("connect() returned before the way was decided")
	default:
	}
	close(hold)
	<-connected
	b.exchanges(client, server)
	client.Close()
	server.Close()
	b.gone()
	if _, err := capture.Stop(); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("tcpdump", "-nr", capture.File).Output()
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(out), "\n"); n != 2 {
		t.Errorf("%d packets with SYN on the wire, want SYN and SYN-ACK:\n%s", n, out)
	}
}

// TestRefusedByStack has a stack that gives a connection up: both programs see a reset.
func TestRefusedByStack(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, func(b *bed, f *Flow) {
		if f.Role == smc.Client {
			f.Reset()
			return
		}
		outer, err := f.Outer()
		if err == nil {
			_, err = outer.Read(make([]byte, 9))
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			b.t.Errorf("server's stack: %v, want ECONNRESET", err)
		}
		f.Reset()
	})
	l := b.listen(b.B.Addr())
	b.must(b.A.Do(func() error {
		c, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			_, err = c.Read(make([]byte, 9))
			c.Close()
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("client: %v, want ECONNRESET", err)
		}
		return nil
	}))
	b.gone()
}

// TestPortsAgain has connections with the same addresses and ports, one right after the other, as a
// client may have them that does not end them first. Each is taken.
func TestPortsAgain(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	l := b.listen(b.B.Addr())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hello")
			c.Close()
		}
	}()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(b.A.Addr()), Port: 45678}}
	const all = 20
	for i := range all {
		b.must(b.A.Do(func() error {
			c, err := dialer.Dial("tcp", l.Addr().String())
			if err != nil {
				return fmt.Errorf("connection %d: %w", i, err)
			}
			defer c.Close()
			got, err := io.ReadAll(c)
			if err != nil || string(got) != "hello" {
				t.Errorf("connection %d: got %q, %v", i, got, err)
			}
			return nil
		}))
	}
	b.wantTaken(all, all)
	b.gone()
}

// TestBound has a user with as many connections as a user may have: the next one is TCP.
func TestBound(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBedWith(t, splice, func(c *Config) { c.PerUser = 2 })
	// The sockets are those of another user: root has no such bound.
	give := func(fd uintptr) {
		if err := unix.Fchown(int(fd), 65533, -1); err != nil {
			t.Error(err)
		}
	}
	b.control = func(_, _ string, c syscall.RawConn) error { return c.Control(give) }
	l := b.listen(b.B.Addr())
	rc, err := l.(*net.TCPListener).SyscallConn()
	if err == nil {
		err = rc.Control(give)
	}
	b.must(err)
	pairs := [][2]*net.TCPConn{}
	for range 4 {
		client, server := b.connect(l)
		pairs = append(pairs, [2]*net.TCPConn{client, server})
	}
	b.wantTaken(2, 2)
	for _, p := range pairs {
		b.exchanges(p[0], p[1])
		p[0].Close()
		p[1].Close()
	}
	b.gone()
	b.connect(l)
	b.wantTaken(3, 3)
	b.control = nil
	give = func(fd uintptr) { _ = unix.Fchown(int(fd), 0, -1) }
	b.must(rc.Control(give))
	for range 4 {
		client, server := b.connect(l)
		b.exchanges(client, server) // not before do both stacks carry it
	}
	b.wantTaken(7, 7)
}

// TestFlows has as many connections as the process has descriptors for: the next one is TCP, and none is reset.
func TestFlows(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBedWith(t, splice, func(c *Config) { c.Flows = 2 })
	l := b.listen(b.B.Addr())
	for range 4 {
		client, server := b.connect(l)
		b.exchanges(client, server)
	}
	b.wantTaken(2, 2)
}

// TestClose has connections that are open when a Diverter ends: both programs see a reset, and nothing
// stays on the host.
func TestClose(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, func(b *bed, f *Flow) {
		if agree(f) == nil {
			_ = f.Splice()
		}
	})
	l := b.listen(b.B.Addr())
	client, server := b.connect(l)
	b.must(b.d[0].Close())
	for name, c := range map[string]*net.TCPConn{"client": client, "server": server} {
		if _, err := c.Read(make([]byte, 9)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v, want ECONNRESET", name, err)
		}
	}
	b.must(b.A.Do(func() error {
		links, err := net.Interfaces()
		for _, l := range links {
			if IsOurs(l.Name) {
				t.Errorf("device %s is left", l.Name)
			}
		}
		return err
	}))
	// And a host without a Diverter is a peer like others.
	b.connect(l)
}

// TestRetry has a stack that gives SMC up: the program's connection is made again, over TCP.
func TestRetry(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, func(b *bed, f *Flow) {
		if f.Role == smc.Client {
			f.Retry()
			return
		}
		b.t.Errorf("the server's stack has got %v", f.Tuple)
		f.Reset()
	})
	l := b.listen(b.B.Addr())
	client, server := b.connect(l)
	b.wantTaken(1, 0)
	b.exchanges(client, server)
	b.gone()
}
