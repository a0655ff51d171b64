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

func (h *handler) SetOption(_ context.Context, c *Conn, level, name int, value []byte) error {
	return SetSockopt(c.Data().(*Descriptor), level, name, value)
}

func (h *handler) GetOption(_ context.Context, c *Conn, level, name, size int) ([]byte, error) {
	return GetSockopt(c.Data().(*Descriptor), level, name, size)
}

// serve runs a server for h and returns its socket's path.
func serve(t *testing.T, srv *Server) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
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
	return path
}

func dial(t *testing.T, path string) *Client {
	t.Helper()
	cl, err := Dial(t.Context(), path, "program")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cl.Close() })
	return cl
}

func tcpSocket(t *testing.T) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func next(t *testing.T, c *ClientConn) Event {
	t.Helper()
	select {
	case ev, ok := <-c.Events():
		if !ok {
			t.Fatal("events ended")
		}
		return ev
	case <-time.After(5 * time.Second):
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

func TestConnectSMC(t *testing.T) {
	remote := netip.MustParseAddrPort("[fe80::1%7]:99")
	h := &handler{connect: func(ctx context.Context, c *Conn, _ *Descriptor, req ConnectRequest) {
		if req.Remote != remote || !req.Nonblock || c.Launcher().Command != "program" || c.Launcher().PID != os.Getpid() {
			t.Errorf("%+v from %+v", req, c.Launcher())
		}
		if err := c.Established(ctx, true); err != nil {
			t.Errorf("Established: %v", err)
		}
		end, err := c.Ready(ctx, ModeSMCR, "")
		if err != nil {
			t.Errorf("Ready: %v", err)
			return
		}
		defer end.Close()
		_ = end.Control(func(fd int) error {
			b := make([]byte, 5)
			n, err := unix.Read(fd, b)
			if string(b[:n]) != "hello" {
				t.Errorf("read %q, %v", b[:n], err)
			}
			return nil
		})
		if err := c.Broken(ctx, unix.ETIMEDOUT); err != nil {
			t.Errorf("Broken: %v", err)
		}
		c.SetCloseReason("link down")
	}}
	cl := dial(t, serve(t, &Server{Handler: h}))
	sock := tcpSocket(t)
	c, err := cl.Connect(sock, ConnectRequest{Remote: remote, Nonblock: true})
	if err != nil {
		t.Fatal(err)
	}
	wantEvent(t, c, Event{Kind: EventEstablished, PeerSMC: true})
	if err := c.SetOption(t.Context(), unix.IPPROTO_TCP, unix.TCP_NODELAY, []byte{1, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
	if v, err := c.GetOption(t.Context(), unix.IPPROTO_TCP, unix.TCP_NODELAY, 4); err != nil || v[0] != 1 {
		t.Fatalf("% x, %v", v, err)
	}
	if v, _ := unix.GetsockoptInt(sock, unix.IPPROTO_TCP, unix.TCP_NODELAY); v == 0 {
		t.Error("the option did not reach the socket")
	}
	if err := c.SetOption(t.Context(), unix.IPPROTO_TCP, 9999, make([]byte, 4)); !errors.Is(err, syscall.ENOPROTOOPT) {
		t.Errorf("unknown option: %v", err)
	}
	if err := c.Proceed(); err != nil {
		t.Fatal(err)
	}
	wantEvent(t, c, Event{Kind: EventReady, Mode: ModeSMCR})
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	if _, err := unix.Write(pair[0], []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := c.Attach(pair[1]); err != nil {
		t.Fatal(err)
	}
	unix.Close(pair[1])
	wantEvent(t, c, Event{Kind: EventBroken, Errno: unix.ETIMEDOUT})
	if _, err := unix.Write(pair[0], []byte{0}); err != nil {
		t.Fatal(err)
	}
	if err := c.BrokenDone(); err != nil {
		t.Fatal(err)
	}
	wantEvent(t, c, Event{Kind: EventClosed, Text: "link down"})
	if _, ok := <-c.Events(); ok {
		t.Error("an event after the last")
	}
	if _, err := unix.Read(pair[0], make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the program's end: %v", err)
	}
	if _, err := c.GetOption(t.Context(), 6, 1, 4); !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("option of a connection that is over: %v", err)
	}
}

func TestConnectOtherwise(t *testing.T) {
	steps := make(chan func(ctx context.Context, c *Conn), 1)
	h := &handler{connect: func(ctx context.Context, c *Conn, _ *Descriptor, _ ConnectRequest) { (<-steps)(ctx, c) }}
	cl := dial(t, serve(t, &Server{Handler: h}))
	connect := func(f func(ctx context.Context, c *Conn)) *ClientConn {
		steps <- f
		c, err := cl.Connect(tcpSocket(t), ConnectRequest{Remote: netip.MustParseAddrPort("192.0.2.1:1")})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	t.Run("not a candidate", func(t *testing.T) {
		c := connect(func(_ context.Context, c *Conn) { _ = c.NotCandidate("loopback") })
		wantEvent(t, c, Event{Kind: EventNotCandidate, Text: "loopback"})
		wantEvent(t, c, Event{Kind: EventClosed})
	})
	t.Run("failed", func(t *testing.T) {
		c := connect(func(_ context.Context, c *Conn) { _ = c.Failed(unix.EHOSTUNREACH, "no route") })
		wantEvent(t, c, Event{Kind: EventFailed, Errno: unix.EHOSTUNREACH, Text: "no route"})
		wantEvent(t, c, Event{Kind: EventClosed})
	})
	t.Run("released", func(t *testing.T) {
		c := connect(func(ctx context.Context, c *Conn) {
			if err := c.Established(ctx, true); err != nil {
				t.Error(err)
			}
			if end, err := c.Ready(ctx, ModeTCP, "peer declined"); end != nil || err != nil {
				t.Errorf("%v, %v", end, err)
			}
		})
		wantEvent(t, c, Event{Kind: EventEstablished, PeerSMC: true})
		_ = c.Proceed()
		wantEvent(t, c, Event{Kind: EventReady, Mode: ModeTCP, Text: "peer declined"})
		_ = c.Release()
		wantEvent(t, c, Event{Kind: EventClosed})
	})
	t.Run("canceled", func(t *testing.T) {
		cause := make(chan error, 1)
		c := connect(func(ctx context.Context, c *Conn) { cause <- c.Established(ctx, true) })
		wantEvent(t, c, Event{Kind: EventEstablished, PeerSMC: true})
		_ = c.Cancel()
		if err := <-cause; !errors.Is(err, ErrCanceled) {
			t.Errorf("cause %v", err)
		}
		wantEvent(t, c, Event{Kind: EventClosed})
	})
	t.Run("wrong answer", func(t *testing.T) {
		cause := make(chan error, 1)
		c := connect(func(ctx context.Context, c *Conn) { cause <- c.Established(ctx, true) })
		_ = c.Release()
		if err := <-cause; !errors.Is(err, ErrOrder) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("the launcher goes", func(t *testing.T) {
		cause := make(chan error, 1)
		c := connect(func(ctx context.Context, c *Conn) {
			_ = c.Established(ctx, false)
			<-ctx.Done()
			cause <- context.Cause(ctx)
		})
		wantEvent(t, c, Event{Kind: EventEstablished})
		_ = cl.Close()
		if err := <-cause; !errors.Is(err, ErrLauncherGone) {
			t.Errorf("cause %v", err)
		}
		if ev, ok := <-c.Events(); ok {
			t.Errorf("event %+v", ev)
		}
		if _, err := cl.Connect(tcpSocket(t), ConnectRequest{}); !errors.Is(err, ErrServiceGone) {
			t.Errorf("after the end: %v", err)
		}
	})
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
	if err := c.Attach(tcpSocket(t)); err != nil {
		t.Fatal(err)
	}
	wantEvent(t, c, Event{Kind: EventReady, Mode: ModeTCP, Text: "no RNIC"})
	wantEvent(t, c, Event{Kind: EventClosed})
}

func TestListen(t *testing.T) {
	h := &handler{listen: func(sock *Descriptor) error {
		return SetSockopt(sock, unix.IPPROTO_TCP, unix.TCP_SAVE_SYN, []byte{1, 0, 0, 0})
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
	if err := cl.Listen(t.Context(), int(file.Fd())); !errors.Is(err, syscall.ENOTSOCK) {
		t.Errorf("not a socket: %v", err)
	}
}

func TestRefused(t *testing.T) {
	path := serve(t, &Server{
		Handler:   &handler{},
		Authorize: func(l *Launcher) error { return errors.New("not the owner") },
		Ended:     func(*Launcher) { t.Error("a refused session was opened") },
	})
	if _, err := Dial(t.Context(), path, ""); !errors.Is(err, syscall.EACCES) {
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
		_ = u.SetReadDeadline(time.Now().Add(5 * time.Second))
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

func TestConnectSocket(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	addr := netip.MustParseAddrPort(l.Addr().String())
	newSocket := func(flags int) (*Descriptor, int) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		d := NewDescriptor(fd)
		t.Cleanup(func() { _ = d.Close() })
		return d, fd
	}
	for _, flags := range []int{0, unix.SOCK_NONBLOCK} {
		d, fd := newSocket(flags)
		if err := ConnectSocket(t.Context(), d, addr); err != nil {
			t.Fatal(err)
		}
		if f, _ := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0); f&unix.O_NONBLOCK != flags {
			t.Errorf("O_NONBLOCK changed: %#x", f)
		}
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}); !errors.Is(err, unix.EISCONN) {
			t.Errorf("connect again: %v", err)
		}
	}
	t.Run("refused, then used again", func(t *testing.T) {
		d, _ := newSocket(0)
		free, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		closed := netip.MustParseAddrPort(free.Addr().String())
		_ = free.Close()
		if err := ConnectSocket(t.Context(), d, closed); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("refused: %v", err)
		}
		if err := ConnectSocket(t.Context(), d, addr); err != nil {
			t.Errorf("again: %v", err)
		}
	})
	t.Run("canceled", func(t *testing.T) {
		// A full backlog answers no SYN.
		full, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(full)
		if err := unix.Bind(full, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			t.Fatal(err)
		}
		if err := unix.Listen(full, 0); err != nil {
			t.Fatal(err)
		}
		sa, err := unix.Getsockname(full)
		if err != nil {
			t.Fatal(err)
		}
		to := netip.AddrPortFrom(addr.Addr(), uint16(sa.(*unix.SockaddrInet4).Port))
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		var last error
		for range 4 {
			d, _ := newSocket(unix.SOCK_NONBLOCK)
			if last = ConnectSocket(ctx, d, to); last != nil {
				if err := ConnectSocket(t.Context(), d, addr); err != nil {
					t.Errorf("after a canceled attempt: %v", err)
				}
				break
			}
		}
		if !errors.Is(last, context.DeadlineExceeded) {
			t.Errorf("error %v", last)
		}
	})
}

func TestDescriptor(t *testing.T) {
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
	keeper, err := unix.FcntlInt(uintptr(fds[1]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(keeper)
	if LetGo(keeper) {
		t.Error("let go from the start")
	}
	if err := MarkLetGo(fds[1]); err != nil {
		t.Fatal(err)
	}
	if !LetGo(keeper) || LetGo(fds[0]) {
		t.Errorf("let go %v, the other end %v", LetGo(keeper), LetGo(fds[0]))
	}
}
