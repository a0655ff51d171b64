// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"smcr/smc"
	"smcr/userstack/tcpopt"
	"smcr/userstack/wire"
)

// parallel is the number of connections at the same time.
const parallel = 16

// longest is how long a connection may take: the peer has 6 seconds for each CLC message.
const longest = 15 * time.Second

func main() {
	// The program ends even if the test that started it was killed.
	time.AfterFunc(time.Hour, func() { fatal(errors.New("an hour is over")) })
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	args := append(os.Args[1:], "", "", "", "")
	number := func(s string) int {
		n, err := strconv.Atoi(s)
		if err != nil {
			fatal(err)
		}
		return n
	}
	switch n := len(os.Args) - 1; {
	case args[0] == "attack-server" && n == 4:
		fatal(attackServer(ctx, args[1], number(args[2]), uint64(number(args[3]))))
	case args[0] == "listen" && n == 2:
		fatal(listen(ctx, args[1]))
	case args[0] == "attack-client" && n == 3:
		fatal(attackClient(ctx, args[1], uint64(number(args[2]))))
	case args[0] == "connect" && n == 3:
		fatal(connect(ctx, args[1], number(args[2])))
	default:
		fmt.Fprintln(os.Stderr, "usage: see the comment of the program")
		os.Exit(2)
	}
}

func fatal(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "resets:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// each calls f n times, in parallel goroutines, each time with different random numbers
// that depend on seed.
func each(ctx context.Context, n int, seed uint64, f func(r *rand.Rand)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for w := range parallel {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w)))
			for next.Add(1) <= int64(n) && ctx.Err() == nil {
				f(r)
			}
		})
	}
	wg.Wait()
}

// pause waits for a random time: usually up to 1.2 ms, in which the peer accepts the
// connection, and sometimes up to 20 ms. It does not sleep, because that is not exact
// enough.
func pause(r *rand.Rand) {
	d := time.Duration(r.Int64N(int64(1200 * time.Microsecond)))
	switch r.IntN(20) {
	case 0:
		d = 0
	case 1:
		time.Sleep(time.Duration(r.Int64N(int64(20 * time.Millisecond))))
		return
	}
	for end := time.Now().Add(d); time.Now().Before(end); {
		time.Sleep(50 * time.Microsecond)
	}
}

// script sends the messages of an attacker before a reset.
type script struct {
	c *net.TCPConn
	r *rand.Rand
}

// say writes a message. Sometimes it writes only a part, or changes a bit. It reports
// whether it wrote the whole message.
func (s script) say(m wire.CLC) bool {
	b, err := m.AppendBinary(nil)
	if err != nil {
		fatal(err)
	}
	whole := true
	switch s.r.IntN(10) {
	case 0:
		b, whole = b[:s.r.IntN(len(b))], false
	case 1:
		b[s.r.IntN(len(b))] ^= 1 << s.r.IntN(8)
	}
	_, err = s.c.Write(b)
	return err == nil && whole
}

// receive reads a message.
func (s script) receive() wire.CLC {
	var b [wire.MaxCLCLen]byte
	if _, err := io.ReadFull(s.c, b[:wire.HeaderLen]); err != nil {
		return nil
	}
	h, err := wire.ParseHeader(b[:wire.HeaderLen])
	if err != nil {
		return nil
	}
	if _, err := io.ReadFull(s.c, b[wire.HeaderLen:h.Length]); err != nil {
		return nil
	}
	m, err := wire.ParseCLC(b[:h.Length])
	if err != nil {
		return nil
	}
	return m
}

// reset ends a connection with RST at a random moment.
func (s script) reset() {
	pause(s.r)
	_ = s.c.SetLinger(0)
	_ = s.c.Close()
}

// endpoint makes one end of a link that does not exist.
func (s script) endpoint() wire.Endpoint {
	mac := smc.MAC{2, 0, 0, 0, byte(s.r.IntN(256)), byte(s.r.IntN(256))}
	return wire.Endpoint{
		PeerID: smc.NewPeerID(uint16(s.r.Uint32()), mac), GID: smc.GID{0: 0xfe, 1: 0x80, 14: mac[4], 15: mac[5]}, MAC: mac,
		QPN: smc.QPN(s.r.IntN(1 << 24)), PSN: smc.PSN(s.r.IntN(1 << 24)), MTU: 3,
		RMB: smc.RToken{RKey: smc.RKey(s.r.Uint32()), Addr: s.r.Uint64() &^ 0xfff}, RMBEIndex: uint8(s.r.IntN(3)), AlertToken: s.r.Uint32(), RMBESize: 1,
	}
}

// client acts as a client that resets at some stage of the handshake.
func (s script) client() {
	defer s.reset()
	stage := s.r.IntN(20)
	if stage < 5 {
		return // without sending anything
	}
	e := s.endpoint()
	if stage == 5 {
		s.say(wire.Decline{PeerID: e.PeerID, Diagnosis: smc.DiagMem, OutOfSync: s.r.IntN(2) == 0})
		return
	}
	ap := s.c.LocalAddr().(*net.TCPAddr).AddrPort()
	ok := s.say(wire.Proposal{
		PeerID: e.PeerID, GID: e.GID, MAC: e.MAC, IPv4: netip.PrefixFrom(ap.Addr().Unmap(), 24).Masked(),
		Growth: make([]byte, wire.ProposalGrowthLinux),
	})
	if !ok || stage < 15 {
		return
	}
	if _, ok := s.receive().(wire.Accept); !ok || stage < 18 {
		return
	}
	if stage == 18 {
		s.say(wire.Decline{PeerID: e.PeerID, Diagnosis: smc.DiagMem, OutOfSync: s.r.IntN(2) == 0})
		return
	}
	s.say(wire.Confirm{Endpoint: e, FirstContact: s.r.IntN(8) != 0})
}

// server acts as a server that resets at some stage of the handshake.
func (s script) server() {
	defer s.reset()
	stage := s.r.IntN(20)
	if stage < 5 {
		return
	}
	if _, ok := s.receive().(wire.Proposal); !ok || stage < 10 {
		return
	}
	e := s.endpoint()
	if stage == 10 {
		s.say(wire.Decline{PeerID: e.PeerID, Diagnosis: smc.DiagMem})
		return
	}
	if !s.say(wire.Accept{Endpoint: e, FirstContact: stage > 12}) || stage < 18 {
		return
	}
	if _, ok := s.receive().(wire.Confirm); ok && stage == 18 {
		s.say(wire.Decline{PeerID: e.PeerID, Diagnosis: smc.DiagMem})
	}
}

// control returns a control function that calls f with the descriptor.
func control(f func(fd int) error) func(string, string, syscall.RawConn) error {
	return func(_, _ string, rc syscall.RawConn) error {
		var err error
		if cerr := rc.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
			return cerr
		}
		return err
	}
}

func attackServer(ctx context.Context, address string, n int, seed uint64) error {
	p, err := tcpopt.Attach(tcpopt.Options{})
	if err != nil {
		return err
	}
	defer p.Close()
	d := net.Dialer{Control: control(p.MarkConnect), Timeout: longest}
	d.SetMultipathTCP(false)
	var done, failed atomic.Int64
	each(ctx, n, seed, func(r *rand.Rand) {
		c, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			failed.Add(1)
			time.Sleep(time.Millisecond)
			return
		}
		_ = c.SetDeadline(time.Now().Add(longest))
		script{c.(*net.TCPConn), r}.client()
		done.Add(1)
	})
	fmt.Printf("%d connections reset, %d could not be made\n", done.Load(), failed.Load())
	return nil
}

func attackClient(ctx context.Context, address string, seed uint64) error {
	p, err := tcpopt.Attach(tcpopt.Options{})
	if err != nil {
		return err
	}
	defer p.Close()
	lc := net.ListenConfig{Control: control(p.MarkListen)}
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	fmt.Println("listening")
	var done atomic.Int64
	for i := uint64(0); ; i++ {
		c, err := l.Accept()
		if err != nil {
			fmt.Printf("%d connections reset\n", done.Load())
			return nil
		}
		go func() {
			x := script{c.(*net.TCPConn), rand.New(rand.NewPCG(seed, i))}
			defer done.Add(1)
			if !announced(p, x.c) {
				x.reset() // a client that does not try SMC now sends no PROPOSAL
				return
			}
			_ = c.SetDeadline(time.Now().Add(longest))
			x.server()
		}()
	}
}

// announced reports whether the peer of an accepted connection announced SMC.
func announced(p *tcpopt.Program, c *net.TCPConn) (yes bool) {
	rc, err := c.SyscallConn()
	if err != nil {
		return false
	}
	_ = rc.Control(func(fd uintptr) {
		state, err := p.Peer(int(fd))
		yes = err == nil && state == tcpopt.PeerSMC
	})
	return yes
}

// serveOne reads until the connection ends.
func serveOne(c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(longest))
	_, _ = io.Copy(io.Discard, c)
	_ = c.Close()
}

func listen(ctx context.Context, address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	fmt.Println("listening")
	var n atomic.Int64
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() == nil {
				return err
			}
			fmt.Printf("%d connections accepted\n", n.Load())
			return nil
		}
		n.Add(1)
		go serveOne(c)
	}
}

func connect(ctx context.Context, address string, n int) error {
	var done, failed atomic.Int64
	var strange atomic.Value // an error of connect that a peer's reset does not cause
	each(ctx, n, 0, func(*rand.Rand) {
		c, err := net.DialTimeout("tcp", address, longest)
		if err != nil {
			failed.Add(1)
			if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, os.ErrDeadlineExceeded) {
				strange.Store(err)
			}
			return
		}
		serveOne(c)
		done.Add(1)
	})
	fmt.Printf("%d connections made, %d could not be\n", done.Load(), failed.Load())
	if err, ok := strange.Load().(error); ok {
		return fmt.Errorf("not what TCP says of a reset: %w", err)
	}
	return nil
}
