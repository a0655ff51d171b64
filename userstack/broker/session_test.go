// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
	"smcr/userstack/internal/rights"
	"smcr/userstack/internal/sockopt"
)

// handler lets each test say what the service does.
type handler struct {
	listen  func(sock *Descriptor) error
	connect func(ctx context.Context, c *Conn, sock *Descriptor, req ConnectRequest)
	accept  func(ctx context.Context, c *Conn, sock *Descriptor)
}

func (h *handler) Listen(_ context.Context, _ *Launcher, sock *Descriptor) error {
	return h.listen(sock)
}

func (h *handler) Connect(ctx context.Context, c *Conn, sock *Descriptor, req ConnectRequest) {
	defer sock.Close()
	c.SetData(sock)
	h.connect(ctx, c, sock, req)
}

func (h *handler) Accept(ctx context.Context, c *Conn, sock *Descriptor) {
	defer sock.Close()
	c.SetData(sock)
	h.accept(ctx, c, sock)
}

func (h *handler) SetOption(_ context.Context, c *Conn, _ rights.Rights, level, name int, value []byte) error {
	return sockopt.Set(c.Data().(*Descriptor), level, name, value)
}

func (h *handler) GetOption(_ context.Context, c *Conn, _ rights.Rights, level, name, size int) ([]byte, error) {
	return sockopt.Get(c.Data().(*Descriptor), level, name, size)
}

// serve runs a server for h and returns its socket's path.
func serve(t *testing.T, srv *Server) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, srv, l)
	return path
}

func serveOn(t *testing.T, srv *Server, l *net.UnixListener) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := srv.Serve(ctx, l); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}

// dialPath opens a session with the service whose socket is at path.
func dialPath(t *testing.T, path string) (*Client, error) {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	return NewClient(t.Context(), c, "program")
}

func dial(t *testing.T, path string) *Client {
	t.Helper()
	cl, err := dialPath(t, path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cl.Close() })
	return cl
}

func tcpSocket(t *testing.T) int { t.Helper(); return socktest.TCP(t) }

func next(t *testing.T, c *ClientConn) Event {
	t.Helper()
	select {
	case ev, ok := <-c.Events():
		if !ok {
			t.Fatal("events ended")
		}
		return ev
	case <-time.After(30 * time.Second):
		t.Fatal("no event")
		return Event{}
	}
}

func wantEvent(t *testing.T, c *ClientConn, want Event) {
	t.Helper()
	if diff := cmp.Diff(want, next(t, c)); diff != "" {
		t.Fatalf("event (-want +got):\n%s", diff)
	}
}

func TestAccept(t *testing.T) {
	h := &handler{accept: func(ctx context.Context, c *Conn, _ *Descriptor) {
		end, err := c.TakeOver(ctx)
		if err != nil {
			t.Errorf("TakeOver: %v", err)
			return
		}
		defer end.Close()
		if _, err := c.Ready(ctx, ModeTCP, "no RNIC"); err != nil {
			t.Errorf("Ready: %v", err)
		}
	}}
	cl := dial(t, serve(t, &Server{Handler: h}))
	c, err := cl.Accept(tcpSocket(t), netip.AddrPort{}, netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	wantEvent(t, c, Event{Kind: EventTaken})
	if err := c.Attach(endOfPair(t)); err != nil {
		t.Fatal(err)
	}
	wantEvent(t, c, Event{Kind: EventReady, Mode: ModeTCP, Text: "no RNIC"})
	wantEvent(t, c, Event{Kind: EventClosed})
}

func TestListen(t *testing.T) {
	h := &handler{listen: func(sock *Descriptor) error {
		return sockopt.Set(sock, unix.IPPROTO_TCP, unix.TCP_SAVE_SYN, []byte{1, 0, 0, 0})
	}}
	cl := dial(t, serve(t, &Server{Handler: h}))
	sock := tcpSocket(t)
	if err := cl.Listen(t.Context(), sock); err != nil {
		t.Fatal(err)
	}
	if v, err := unix.GetsockoptInt(sock, unix.IPPROTO_TCP, unix.TCP_SAVE_SYN); err != nil || v != 1 {
		t.Errorf("%d, %v", v, err)
	}
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	// No launcher of ours passes what is no socket: that ends the session.
	if err := cl.Listen(t.Context(), int(file.Fd())); !errors.Is(err, ErrServiceGone) {
		t.Errorf("not a socket: %v", err)
	}
}

func TestRefused(t *testing.T) {
	testkind.System(t)
	path := serve(t, &Server{
		Handler:   &handler{},
		Authorize: func(l *Launcher) error { return errors.New("not the owner") },
		Ended:     func(*Launcher) { t.Error("a refused session was opened") },
	})
	if _, err := dialPath(t, path); !errors.Is(err, syscall.EACCES) {
		t.Errorf("Dial: %v", err)
	}
	// Another version, garbage, and descriptors where none belong.
	for name, b := range map[string][]byte{
		"version": mustEncode(t, Message{Type: TypeHello, Size: Version + 1}),
		"type":    mustEncode(t, Message{Type: TypeProceed}),
		"garbage": {1, 2, 3},
	} {
		c, err := net.Dial("unixpacket", path)
		if err != nil {
			t.Fatal(err)
		}
		u := c.(*net.UnixConn)
		if _, _, err := u.WriteMsgUnix(b, unix.UnixRights(0), nil); err != nil {
			t.Fatal(err)
		}
		_ = u.SetReadDeadline(time.Now().Add(30 * time.Second))
		for {
			if _, err = u.Read(make([]byte, MaxMessage)); err != nil {
				break
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the session goes on", name)
		}
		_ = c.Close()
	}
}

func mustEncode(t *testing.T, m Message) []byte {
	t.Helper()
	b, err := m.AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDescriptor(t *testing.T) {
	testkind.System(t)
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	d := NewDescriptor(fds[0])
	dup, err := d.Dup()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if err := d.Control(func(int) error { return nil }); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Control: %v", err)
	}
	if _, err := d.Dup(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Dup: %v", err)
	}
	unix.Close(dup)
	if n, err := unix.Read(fds[1], make([]byte, 1)); n != 0 || err != nil {
		t.Errorf("the other end: %d, %v, want %v", n, err, io.EOF)
	}
}

// The process of a service that is closed, but lives, is not dead, and a pair's
// end tells through any descriptor whether it was let go.
func TestNotDead(t *testing.T) {
	testkind.System(t)
	cl := dial(t, serve(t, &Server{Handler: &handler{}}))
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-cl.Dead():
		t.Error("dead")
	default:
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	endCopy, err := unix.FcntlInt(uintptr(fds[1]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(endCopy)
	if MarkedUnread(endCopy) {
		t.Error("let go from the start")
	}
	if err := MarkUnread(fds[1]); err != nil {
		t.Fatal(err)
	}
	if !MarkedUnread(endCopy) || MarkedUnread(fds[0]) {
		t.Errorf("marked %v, the other end %v", MarkedUnread(endCopy), MarkedUnread(fds[0]))
	}
}

// endOfPair returns what a launcher passes with Attach.
func endOfPair(t *testing.T) int {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = unix.Close(fds[0])
		_ = unix.Close(fds[1])
	})
	return fds[0]
}

// transports returns the two ends of a session that nobody serves yet.
func transports(t *testing.T) (launcher, service *transport) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	end := func(fd int) *transport {
		f := os.NewFile(uintptr(fd), "session")
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return newTransport(c.(*net.UnixConn))
	}
	return end(fds[0]), end(fds[1])
}

// A service that ends a session acts on nothing that the launcher sent before it
// knew, and lets go of the ends in it, of which there is no other word; and none
// can follow.
func TestEndsOnTheirWay(t *testing.T) {
	for name, want := range map[string]error{"by the service": nil, "by a message out of place": ErrMalformed} {
		t.Run(name, func(t *testing.T) {
			launcher, service := transports(t)
			early, late, sock := endOfPair(t), endOfPair(t), tcpSocket(t)
			send := func(m Message, fd int) {
				t.Helper()
				if err := launcher.send(&m, fd); err != nil {
					t.Fatal(err)
				}
			}
			send(Message{Type: TypeAttach, Conn: 1}, early) // of a connection that is over
			if want != nil {
				send(Message{Type: TypeHello}, -1)
			}
			send(Message{Type: TypeAttach, Conn: 2}, late)
			if _, err := launcher.c.Write([]byte{1, 2, 3}); err != nil {
				t.Fatal(err)
			}
			send(Message{Type: TypeConnect, Conn: 3, Remote: netip.MustParseAddrPort("192.0.2.1:1")}, sock)
			if want == nil {
				service.shutdown()
			}
			h := &handler{connect: func(context.Context, *Conn, *Descriptor, ConnectRequest) {
				t.Error("a connection begins in a session that is over")
			}}
			ss := newSession(&Server{Handler: h}, service, &Launcher{})
			if err := ss.run(t.Context()); !errors.Is(err, want) {
				t.Errorf("run: %v, want %v", err, want)
			}
			if !MarkedUnread(early) || !MarkedUnread(late) || MarkedUnread(sock) {
				t.Errorf("let go: %v, %v, and a TCP socket: %v", MarkedUnread(early), MarkedUnread(late), MarkedUnread(sock))
			}
			if err := launcher.send(&Message{Type: TypeAttach, Conn: 4}, early); !errors.Is(err, syscall.EPIPE) {
				t.Errorf("after the end: %v", err)
			}
		})
	}
}

// A service that gives up while it waits for the pair says so, as the pair may
// be on its way.
func TestGivenUp(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	check := func(err error) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}
	h := &handler{
		connect: func(_ context.Context, c *Conn, _ *Descriptor, _ ConnectRequest) {
			_, err := c.Ready(over, ModeSMCR, "")
			check(err)
		},
		accept: func(_ context.Context, c *Conn, _ *Descriptor) {
			_, err := c.TakeOver(over)
			check(err)
		},
	}
	cl := dial(t, serve(t, &Server{Handler: h}))
	connect, err := cl.Connect(tcpSocket(t), ConnectRequest{})
	if err != nil {
		t.Fatal(err)
	}
	wantEvent(t, connect, Event{Kind: EventReady, Mode: ModeSMCR})
	wantEvent(t, connect, Event{Kind: EventClosed, Errno: syscall.ECONNRESET})
	accept, err := cl.Accept(tcpSocket(t), netip.AddrPort{}, netip.AddrPort{})
	if err != nil {
		t.Fatal(err)
	}
	wantEvent(t, accept, Event{Kind: EventTaken})
	wantEvent(t, accept, Event{Kind: EventClosed, Errno: syscall.ECONNRESET})
}

// TestLocalChosen: a launcher that chose pairs within the host learns whether the stack makes
// them, and the stack knows what each launcher chose.
func TestLocalChosen(t *testing.T) {
	testkind.System(t)
	for name, tt := range map[string]struct {
		flags   []Flags
		decides func(*Launcher) bool
		want    bool
	}{
		"not chosen":                           {nil, nil, false},
		"chosen":                               {[]Flags{FlagLocal}, nil, true},
		"chosen, and the stack makes none":     {[]Flags{FlagLocal}, func(*Launcher) bool { return false }, false},
		"not chosen, and the stack chooses it": {nil, func(*Launcher) bool { return true }, true},
	} {
		t.Run(name, func(t *testing.T) {
			seen := make(chan bool, 1)
			path := serve(t, &Server{Handler: &handler{}, Local: tt.decides, Opened: func(l *Launcher) { seen <- l.Local }})
			c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
			if err != nil {
				t.Fatal(err)
			}
			cl, err := NewClient(t.Context(), c, "program", tt.flags...)
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			if got := <-seen; got != tt.want || cl.Local() != tt.want {
				t.Errorf("stack: %v, launcher: %v, want %v", got, cl.Local(), tt.want)
			}
		})
	}
}
