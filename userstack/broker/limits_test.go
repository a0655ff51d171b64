// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	_ "smcr/internal/testing/firstthread"
	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
	"smcr/quota"
)

// nobody is a user without privileges.
const nobody = 65534

// dialAs opens a session as a user, on a thread of its own.
func dialAs(t *testing.T, uid int, path string) (cl *Client, err error) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") == "true" {
			t.Fatal("needs root")
		}
		t.Skip("needs root to become another user")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends here
		fd, e := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if e != nil {
			err = e
			return
		}
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); e != 0 {
			err = e
			return
		}
		if err = unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			return
		}
		f := os.NewFile(uintptr(fd), "session")
		defer f.Close()
		var c net.Conn
		if c, err = net.FileConn(f); err == nil {
			cl, err = NewClient(t.Context(), c.(*net.UnixConn), "program")
		}
	}()
	<-done
	if err == nil {
		t.Cleanup(func() { _ = cl.Close() })
	}
	return cl, err
}

// abstract runs a server at an address that every user may connect to.
func abstract(t *testing.T, srv *Server) string {
	t.Helper()
	path := "@smcr-broker-test-" + t.Name()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, srv, l)
	return path
}

// TestSessionLimit: a user beyond the limit is told so, root is not held by it,
// and a session that ends makes room.
func TestSessionLimit(t *testing.T) {
	testkind.System(t)
	path := abstract(t, &Server{Handler: &handler{}, MaxSessions: 2})
	var first *Client
	for range 2 {
		cl, err := dialAs(t, nobody, path)
		if err != nil {
			t.Fatal(err)
		}
		first = cl
	}
	for range 20 { // whatever comes first, the answer or the end
		if _, err := dialAs(t, nobody, path); !errors.Is(err, syscall.EUSERS) || !strings.Contains(err.Error(), "user 65534 has 2 of at most 2 sessions") {
			t.Fatalf("a third session: %v", err)
		}
	}
	for range 4 {
		dial(t, path)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := dialAs(t, nobody, path); err == nil {
			break
		} else if time.Now().After(end) {
			t.Fatalf("after one ended: %v", err)
		}
	}
}

// decliner is a handler that declines.
type decliner struct {
	handler
	declined atomic.Int32
}

func (d *decliner) Decline(_ context.Context, c *Conn, sock *Descriptor, why error) {
	defer sock.Close()
	d.declined.Add(1)
	_ = c.NotCandidate(why.Error())
}

// TestDeclineShares: who is beyond a quota with connections whose peers do not answer does not keep
// others from telling theirs.
func TestDeclineShares(t *testing.T) {
	const other = nobody - 1
	slow := make(chan uint32, 2*maxDeclining)
	leave := make(chan struct{})
	h := &slowDecliner{decline: func(ctx context.Context, c *Conn) {
		slow <- c.Launcher().UID
		select {
		case <-leave:
		case <-ctx.Done():
		}
		_ = c.NotCandidate("told")
	}}
	budget := quota.New(quota.Limits{Total: 10000, User: sessionCost + connCost - 1})
	path := abstract(t, &Server{Handler: h, Quota: budget})
	accept := func(cl *Client) *ClientConn {
		t.Helper()
		c, err := cl.Accept(tcpSocket(t), netip.AddrPort{}, netip.AddrPort{})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	greedy, err := dialAs(t, nobody, path)
	if err != nil {
		t.Fatal(err)
	}
	var first []*ClientConn
	for range maxDecliningUser {
		first = append(first, accept(greedy))
	}
	for range maxDecliningUser {
		if uid := <-slow; uid != nobody {
			t.Errorf("user %d", uid)
		}
	}
	// The share is full: the launcher of this user must look at the connections itself.
	for range maxDeclining {
		if ev := next(t, accept(greedy)); ev.Kind != EventNotCandidate || ev.Errno == 0 || ev.Text == "told" {
			t.Errorf("beyond the share: %+v", ev)
		}
	}
	cl, err := dialAs(t, other, path)
	if err != nil {
		t.Fatal(err)
	}
	c := accept(cl)
	if uid := <-slow; uid != other {
		t.Errorf("user %d", uid)
	}
	close(leave)
	for _, c := range append(first, c) {
		wantEvent(t, c, Event{Kind: EventNotCandidate, Text: "told"})
		wantEvent(t, c, Event{Kind: EventClosed})
	}
	// The places are free again.
	wantEvent(t, accept(greedy), Event{Kind: EventNotCandidate, Text: "told"})
}

// TestDeclineUsers: users who together have all places for declines give one to the next user, and
// the descriptors in use are never more than those of the places.
func TestDeclineUsers(t *testing.T) {
	var running, most atomic.Int32
	slow := make(chan uint32, 2*maxDeclining)
	h := &slowDecliner{decline: func(ctx context.Context, c *Conn) {
		most.Store(max(most.Load(), running.Add(1)))
		slow <- c.Launcher().UID
		<-ctx.Done()
		running.Add(-1)
		_ = c.NotCandidate("told")
	}}
	budget := quota.New(quota.Limits{Total: 100000, User: sessionCost + connCost - 1})
	path := abstract(t, &Server{Handler: h, Quota: budget})
	for i := range maxDeclining {
		cl, err := dialAs(t, nobody-i, path)
		if err != nil {
			t.Fatal(err)
		}
		for n := range maxDecliningUser {
			if _, err := cl.Accept(tcpSocket(t), netip.AddrPort{}, netip.AddrPort{}); err != nil {
				t.Fatal(err)
			}
			if n > 0 && i >= maxDeclining/maxDecliningUser {
				continue // it has no second place
			}
			select {
			case uid := <-slow:
				if uid != uint32(nobody-i) {
					t.Errorf("user %d instead of %d", uid, nobody-i)
				}
			case <-time.After(declineTime / 2):
				t.Fatalf("user %d gets no place: %d users have all", i+1, i)
			}
		}
	}
	if n := most.Load(); n > maxDeclining {
		t.Errorf("%d at a time, at most %d", n, maxDeclining)
	}
}

// slowDecliner is a handler that declines with a function.
type slowDecliner struct {
	handler
	decline func(context.Context, *Conn)
}

func (d *slowDecliner) Decline(ctx context.Context, c *Conn, sock *Descriptor, _ error) {
	defer sock.Close()
	d.decline(ctx, c)
}

// TestConnLimit: connections beyond a user's quota stay TCP, with the reason, and
// the session goes on; those that end make room, when the stack is done with them.
func TestConnLimit(t *testing.T) {
	gate := make(chan struct{})
	retained := make(chan func(), 8)
	wait := func(ctx context.Context, c *Conn, _ *Descriptor) {
		retained <- c.Retain()
		select {
		case <-gate:
		case <-ctx.Done():
		}
	}
	h := &decliner{handler: handler{
		listen:  func(*Descriptor) error { return nil },
		connect: func(ctx context.Context, c *Conn, d *Descriptor, _ ConnectRequest) { wait(ctx, c, d) },
		accept:  wait,
	}}
	budget := quota.New(quota.Limits{Total: 10000, User: sessionCost + 2*connCost})
	path := abstract(t, &Server{Handler: h, Quota: budget})
	cl, err := dialAs(t, nobody, path)
	if err != nil {
		t.Fatal(err)
	}
	connect := func() *ClientConn {
		t.Helper()
		c, err := cl.Connect(tcpSocket(t), ConnectRequest{Remote: netip.MustParseAddrPort("192.0.2.1:1")})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	refused := func(c *ClientConn, errno syscall.Errno) {
		t.Helper()
		ev := next(t, c)
		if ev.Kind != EventNotCandidate || ev.Errno != errno || !strings.Contains(ev.Text, "user 65534 has 10 of at most 10 descriptors") {
			t.Errorf("beyond the quota: %+v", ev)
		}
		wantEvent(t, c, Event{Kind: EventClosed})
	}
	held := []*ClientConn{connect(), connect()}
	for range 3 {
		refused(connect(), 0)
	}
	accept, err := cl.Accept(tcpSocket(t), netip.AddrPort{}, netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	refused(accept, 0)
	if n := h.declined.Load(); n != 1 {
		t.Errorf("%d declined, want 1", n)
	}
	if err := cl.Listen(t.Context(), tcpSocket(t)); !errors.Is(err, syscall.EUSERS) {
		t.Errorf("Listen: %v", err)
	}
	if _, err := dialAs(t, nobody, path); !errors.Is(err, syscall.EUSERS) {
		t.Errorf("another session: %v", err)
	}
	if root := dial(t, path); root.Listen(t.Context(), tcpSocket(t)) != nil {
		t.Error("root is refused")
	}
	close(gate)
	for _, c := range held {
		wantEvent(t, c, Event{Kind: EventClosed})
	}
	// Six are left, and two that the stack has retained.
	if err := budget.Take(nobody, 7); err == nil {
		t.Error("nothing was retained")
		budget.Give(nobody, 7)
	}
	for range held {
		(<-retained)()
	}
	if err := budget.Take(nobody, 2*connCost); err != nil {
		t.Errorf("after the end of all: %v", err)
	}
}

// TestLostDescriptor: descriptors that cannot be received cost their message, and
// nothing stays open.
func TestLostDescriptor(t *testing.T) {
	h := &handler{
		listen: func(*Descriptor) error { return nil },
		accept: func(ctx context.Context, c *Conn, _ *Descriptor) {
			if _, err := c.TakeOver(ctx); !errors.Is(err, syscall.EMFILE) {
				t.Errorf("TakeOver: %v", err)
			}
		},
	}
	cl := dial(t, serve(t, &Server{Handler: h}))
	before := socktest.OpenFiles(t)
	many := make([]int, 20)
	for i := range many {
		many[i] = tcpSocket(t)
	}
	// send sends m with more descriptors than there is room for.
	send := func(m Message) {
		t.Helper()
		cl.t.sendMu.Lock()
		defer cl.t.sendMu.Unlock()
		if _, _, err := cl.t.c.WriteMsgUnix(mustEncode(t, m), unix.UnixRights(many...), nil); err != nil {
			t.Fatal(err)
		}
	}
	// register makes a connection of which the test sends the messages.
	register := func(id uint64) *ClientConn {
		c := &ClientConn{cl: cl, id: id, events: make(chan Event, maxEvents)}
		cl.mu.Lock()
		cl.conns[id] = c
		cl.mu.Unlock()
		return c
	}
	c := register(1001)
	send(Message{Type: TypeConnect, Conn: 1001, Remote: netip.MustParseAddrPort("192.0.2.1:1")})
	if ev := next(t, c); ev.Kind != EventNotCandidate || ev.Errno != 0 || !strings.Contains(ev.Text, "too many open files") {
		t.Errorf("connect: %+v", ev)
	}
	wantEvent(t, c, Event{Kind: EventClosed})
	c = register(1002)
	send(Message{Type: TypeAccept, Conn: 1002})
	if ev := next(t, c); ev.Kind != EventNotCandidate || ev.Errno != syscall.EMFILE {
		t.Errorf("accept: %+v", ev)
	}
	wantEvent(t, c, Event{Kind: EventClosed})
	answer := make(chan Message, 1)
	cl.mu.Lock()
	cl.results[9999] = answer
	cl.mu.Unlock()
	send(Message{Type: TypeListen, Seq: 9999})
	select {
	case m := <-answer:
		if syscall.Errno(m.Errno) != syscall.EMFILE {
			t.Errorf("listen: %+v", m)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("listen: no answer")
	}
	// The pair's end is gone: the program's connection has to be reset.
	taken, err := cl.Accept(tcpSocket(t), netip.AddrPort{}, netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	wantEvent(t, taken, Event{Kind: EventTaken})
	send(Message{Type: TypeAttach, Conn: taken.ID()})
	wantEvent(t, taken, Event{Kind: EventClosed, Errno: syscall.ECONNRESET})
	if err := cl.Listen(t.Context(), tcpSocket(t)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	// Less the sockets that the test opened itself.
	for end := time.Now().Add(30 * time.Second); socktest.OpenFiles(t) > before+len(many)+2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d descriptors, %d before", socktest.OpenFiles(t), before)
		}
	}
}

// TestAttachUnasked: a pair that nobody asked for ends the session, it does not
// wait in it.
func TestAttachUnasked(t *testing.T) {
	h := &handler{connect: func(ctx context.Context, c *Conn, _ *Descriptor, _ ConnectRequest) {
		_ = c.Established(ctx, true) // waits for Proceed
	}}
	cl := dial(t, serve(t, &Server{Handler: h}))
	c, err := cl.Connect(tcpSocket(t), ConnectRequest{})
	if err != nil {
		t.Fatal(err)
	}
	wantEvent(t, c, Event{Kind: EventEstablished, PeerSMC: true})
	end := endOfPair(t)
	if err := c.Attach(end); err != nil {
		t.Fatal(err)
	}
	select {
	case <-cl.Done():
	case <-time.After(30 * time.Second):
		t.Fatal("the session goes on")
	}
	if !MarkedUnread(end) {
		t.Error("the pair's end was not let go")
	}
}

// TestManyRequests: a launcher that asks for much at once gets all of it, a bounded
// part at a time.
func TestManyRequests(t *testing.T) {
	var running, most atomic.Int32
	release := make(chan struct{})
	h := &handler{listen: func(*Descriptor) error {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		<-release
		return nil
	}}
	cl := dial(t, serve(t, &Server{Handler: h}))
	sock := tcpSocket(t)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range uint32(4 * maxRequests) {
			if err := cl.t.send(&Message{Type: TypeListen, Seq: i}, sock); err != nil {
				t.Errorf("request %d: %v", i, err)
				return
			}
		}
	}()
	for end := time.Now().Add(30 * time.Second); running.Load() < maxRequests; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d requests in progress", running.Load())
		}
	}
	close(release)
	<-sent
	if err := cl.Listen(t.Context(), sock); err != nil {
		t.Error(err)
	}
	if n := most.Load(); n > maxRequests {
		t.Errorf("%d requests at once, want %d at most", n, maxRequests)
	}
}
