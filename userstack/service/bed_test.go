// SPDX-License-Identifier: Apache-2.0

package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/place"
	"smcr/rdmaverbs"
	"smcr/userstack"
	"smcr/userstack/broker"
	"smcr/userstack/engine"
	"smcr/userstack/internal/inside"
	"smcr/userstack/internal/programs"
	"smcr/userstack/network"
	"smcr/userstack/simfabric"
	"smcr/userstack/wire"
)

// loopback is a Network in which this machine's loopback leads to the
// neighbours, over the netdev of a simulated host: sockets are real, RDMA is
// not.
type loopback struct{ h *simfabric.Host }

func (n loopback) Route(_, remote netip.Addr) (network.Route, error) {
	if !remote.Unmap().IsLoopback() {
		return network.Route{}, fmt.Errorf("%w: %s", userstack.ErrNotOnLink, remote)
	}
	d := n.h.NetDevs()[0]
	return network.Route{NetDev: d.Name, IfIndex: d.Index, Local: []netip.Prefix{netip.MustParsePrefix("127.0.0.1/8")}}, nil
}

func (loopback) Secured(_, _ netip.AddrPort) (bool, error) { return false, nil }

func (n loopback) NetDevs() (out []network.NetDev, _ error) {
	for _, d := range n.h.NetDevs() {
		out = append(out, network.NetDev(d))
	}
	return out, nil
}

// option stands for the eBPF program: it counts marks and says of every peer
// what the test wants.
type option struct {
	connects, listens atomic.Int32
	unmarked          atomic.Int32 // how often UnmarkConnect was called
	smc               atomic.Bool
	broken            atomic.Bool  // cannot tell
	gate              network.Gate // nil: one that lets everything pass
	noGate            error        // the kernel has none
}

func (o *option) MarkConnect(int) error { o.connects.Add(1); return nil }
func (o *option) MarkListen(int) error  { o.listens.Add(1); return nil }
func (o *option) UnmarkConnect(int) error {
	o.unmarked.Add(1)
	return nil
}
func (o *option) GateConnect(fd int) error {
	if o.noGate != nil {
		return o.noGate
	}
	return o.MarkConnect(fd)
}
func (o *option) GateListen(fd int, _ uint32) error {
	if o.noGate != nil {
		return o.noGate
	}
	return o.MarkListen(fd)
}
func (o *option) Gate(int) (network.Gate, error) {
	if o.gate != nil || o.noGate != nil {
		return o.gate, nil
	}
	return &openGate{}, nil
}
func (o *option) Close() error { return nil }
func (o *option) PeerSMC(int) (bool, error) {
	if o.broken.Load() {
		return false, errors.New("no word of the TCP option")
	}
	return o.smc.Load(), nil
}

// openGate is a gate that keeps nobody from sending. It notes what is done to it.
type openGate struct {
	mu    sync.Mutex
	sent  []wire.CLCType
	last  bool // the last message was to open it
	reads []int
	data  bool
	here  int // calls of OpenHere
	fails error
}

func (g *openGate) Send(fd int, msg []byte, last bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.fails != nil {
		return g.fails
	}
	h, err := wire.ParseHeader(msg)
	if err != nil {
		return err
	}
	g.sent, g.last = append(g.sent, h.Type), last
	_, err = unix.SendmsgN(fd, msg, nil, nil, unix.MSG_NOSIGNAL)
	return err
}

func (g *openGate) Open(_, read int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.reads = append(g.reads, read)
	return g.fails
}

func (g *openGate) OpenHere(int) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.here++
	return nil
}

func (g *openGate) openedHere() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.here
}

func (g *openGate) OpenToData(_ int, isData func([]byte) bool) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.data = isData([]byte("GET /"))
	return g.fails
}

// serviceBed is a service without sockets of its own, and a launcher's
// sessions with it.
type serviceBed struct {
	t     testing.TB
	s     *Service
	srv   *broker.Server
	opt   *option
	ctx   context.Context // of the sessions
	end   func()          // ends ctx and waits for the sessions
	wg    sync.WaitGroup
	local bool // launchers choose pairs for connections within the host

	command string // of the programs of launchers; "": program
}

func newServiceBed(t testing.TB, h *simfabric.Host, tune func(*userstack.Config)) *serviceBed {
	t.Helper()
	return newServiceBedOn(t, h, loopback{h}, tune)
}

func newServiceBedOn(t testing.TB, h *simfabric.Host, network network.Network, tune func(*userstack.Config)) *serviceBed {
	t.Helper()
	return newServiceBedWith(t, h, network, nil, tune)
}

// newServiceBedWith is newServiceBedOn with another option than the bed's own.
func newServiceBedWith(t testing.TB, h *simfabric.Host, network network.Network, marker network.OptionMarker, tune func(*userstack.Config)) *serviceBed {
	t.Helper()
	b := &serviceBed{t: t, opt: &option{}}
	b.opt.smc.Store(true)
	cfg := userstack.Config{Providers: []rdmaverbs.Provider{h.Provider()}, Hostname: h.Name(), RecvBuf: 64 << 10, SendBuf: 64 << 10}
	if tune != nil {
		tune(&cfg)
	}
	var loop *engine.Loop
	if withEngine {
		var err error
		if loop, err = engine.New(engine.DefaultSpin); err != nil {
			t.Fatal(err)
		}
		cfg.Engines = []*engine.Loop{loop}
	}
	machine := inside.Host{Network: network}
	switch {
	case marker != nil:
		machine.Option = marker
	case !cfg.NoOption:
		machine.Option = b.opt
	}
	inside.SetHost(&cfg, machine)
	stack, err := userstack.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.s = &Service{log: slog.New(slog.DiscardHandler), stack: stack, programs: programs.New(stack)}
	if b.s.netns, err = place.Cookie(); err != nil {
		t.Fatal(err)
	}
	b.s.cfg.Engines = cfg.Engines
	b.s.ending, b.s.end = context.WithCancel(context.Background())
	b.srv = &broker.Server{Handler: b.s, Local: b.s.mayJoin}
	ctx, cancel := context.WithCancel(context.Background())
	b.ctx = ctx
	b.end = func() { // as Run does
		b.s.endRelays()
		cancel()
		b.wg.Wait()
	}
	t.Cleanup(func() {
		b.end()
		if err := b.s.connector.Close(); err != nil {
			t.Error(err)
		}
		if err := b.s.local.close(); err != nil {
			t.Error(err)
		}
		if err := stack.Close(); err != nil && !errors.Is(err, userstack.ErrStackClosed) {
			t.Error(err)
		}
		for _, l := range b.s.cfg.Engines {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return b
}

// host makes a simulated host that is alone in its world.
func host(t testing.TB) *simfabric.Host {
	w := simfabric.New(simfabric.Config{})
	t.Cleanup(w.Close)
	return w.Host("host", netdev(1))
}

func netdev(n byte) simfabric.NetDev {
	return simfabric.NetDev{Name: "eth0", Addrs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 24)}}
}

// launcher opens a session. The service takes the launcher for user uid,
// which takes root if it is another than that of the test.
func (b *serviceBed) launcher(uid int) *broker.Client {
	b.t.Helper()
	fds, err := socketpairAs(uid, unix.SOCK_SEQPACKET)
	if err != nil {
		b.t.Fatal(err)
	}
	var ends [2]*net.UnixConn
	for i, fd := range fds {
		c, err := fileConn(fd)
		if err != nil {
			b.t.Fatal(err)
		}
		ends[i] = c.(*net.UnixConn)
	}
	b.wg.Go(func() {
		if err := b.srv.ServeConn(b.ctx, ends[0]); err != nil && b.ctx.Err() == nil {
			b.t.Errorf("session: %v", err)
		}
	})
	var flags broker.Flags
	if b.local {
		flags = broker.FlagLocal
	}
	cl, err := broker.NewClient(b.ctx, ends[1], cmp.Or(b.command, "program"), flags)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = cl.Close() })
	return cl
}

// socketpairAs makes a socketpair whose peer credentials are those of uid: the
// kernel takes the effective ones of the thread that makes it.
func socketpairAs(uid, typ int) (fds [2]int, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if uid != os.Geteuid() {
			runtime.LockOSThread() // and never unlocked: the thread ends here
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); e != 0 {
				err = e
				return
			}
		}
		fds, err = unix.Socketpair(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC, 0)
	}()
	<-done
	return fds, err
}

// next wants the next event of a connection to be of a kind.
func next(t testing.TB, c *broker.ClientConn, want broker.EventKind) broker.Event {
	t.Helper()
	select {
	case ev, ok := <-c.Events():
		if !ok || ev.Kind != want {
			t.Fatalf("event %+v, %v; want kind %d", ev, ok, want)
		}
		return ev
	case <-time.After(testTime):
		t.Fatalf("no event, want kind %d\n%s", want, relayStacks())
		panic("unreachable")
	}
}

// tcpSocket is a program's TCP socket.
func tcpSocket(t testing.TB, flags int) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func listenTCP(t testing.TB) (*net.TCPListener, netip.AddrPort) {
	t.Helper()
	l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := l.SetDeadline(time.Now().Add(testTime)); err != nil {
		t.Fatal(err)
	}
	return l, l.Addr().(*net.TCPAddr).AddrPort()
}

func accept(t testing.TB, l *net.TCPListener) *net.TCPConn {
	t.Helper()
	c, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(testTime)); err != nil {
		t.Fatal(err)
	}
	return c
}
