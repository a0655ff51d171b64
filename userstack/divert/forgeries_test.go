// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"smcr/internal/testing/netnstest"
	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// What somebody sends who knows addresses and ports of a connection, and not its numbers: another host of the LAN, or behind a router.
var forgeries = []struct {
	name    string
	flags   layers.TCP
	options []layers.TCPOption
	payload string
	opens   bool // TCP itself has no defence against it while a client waits for SYN-ACK
}{
	{name: "reset", flags: layers.TCP{RST: true}},
	{name: "reset with ack", flags: layers.TCP{RST: true, ACK: true}},
	{name: "SYN", flags: layers.TCP{SYN: true}, opens: true},
	{name: "SYN that announces", flags: layers.TCP{SYN: true}, options: withOption(), opens: true},
	{name: "SYN-ACK", flags: layers.TCP{SYN: true, ACK: true}},
	{name: "SYN-ACK that announces", flags: layers.TCP{SYN: true, ACK: true}, options: withOption()},
	{name: "FIN", flags: layers.TCP{FIN: true, ACK: true}},
	{name: "ACK", flags: layers.TCP{ACK: true}},
	{name: "data", flags: layers.TCP{ACK: true, PSH: true}, payload: "forged"},
	{name: "data in a SYN", flags: layers.TCP{SYN: true}, options: withOption(), payload: "forged", opens: true},
	{name: "nothing set", flags: layers.TCP{}, payload: "forged"},
}

// forges has forgeries of an endpoint sent, with numbers far from those of the connection.
func (s *scripted) forges(opening bool) {
	for _, f := range forgeries {
		if f.opens && !opening {
			continue
		}
		for _, off := range []uint32{1 << 20, 1 << 31, 3 << 30} {
			s.segment(f.flags, s.snd+off, s.rcv+off, f.options, f.payload)
		}
	}
}

// TestForgedAtEachStage has another host of the LAN forge packets of a connection at each stage of it, from the first SYN to its end. The
// connection, and those beside it, go on as if nothing had come.
func TestForgedAtEachStage(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	for _, v6 := range []bool{false, true} {
		for _, role := range []smc.Role{smc.Client, smc.Server} {
			name := map[bool]string{false: "ipv4", true: "ipv6"}[v6] + "/" + role.String()
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				b := newBed(t, splice)
				// The one of the two programs that the scripted endpoint talks to is on A if it connects.
				own, other := b.A, b.B
				if role == smc.Server {
					own, other = b.B, b.A
				}
				address := (*netnstest.Host).Addr
				if v6 {
					address = (*netnstest.Host).Addr6
				}
				victims := b.victims(20)
				s := b.scripted(other, own, v6, 3001)
				var program *net.TCPConn
				if role == smc.Client {
					program = b.scriptedServer(s)
				} else {
					program = b.scriptedClient(s, b.listen(address(b.B)))
				}
				defer program.Close()
				for range 3 {
					s.forges(true)
					s.says("hello")
					got := make([]byte, 5)
					if _, err := io.ReadFull(program, got); err != nil || string(got) != "hello" {
						t.Fatalf("the program got %q, %v", got, err)
					}
					if _, err := io.WriteString(program, "world"); err != nil {
						t.Fatal(err)
					}
					s.wants("world")
				}
				b.must(program.CloseWrite())
				s.hears("FIN", func(t *layers.TCP) bool { return t.FIN && t.Seq == s.rcv })
				s.rcv++
				s.forges(true)
				s.says("the rest")
				s.segment(layers.TCP{ACK: true, FIN: true}, s.snd, s.rcv, nil, "")
				if got, err := io.ReadAll(program); err != nil || string(got) != "the rest" {
					t.Errorf("the program got %q, %v", got, err)
				}
				for i := range victims {
					b.exchanges(victims[i][0], victims[i][1])
				}
			})
		}
	}
}

// TestForgedWhenLetGo has another host forge packets of a connection that the stack has let go, and of which nothing has come since.
func TestForgedWhenLetGo(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	for _, clock := range []uint32{0, 1 << 20} {
		t.Run(map[bool]string{true: "with", false: "without"}[clock != 0]+" timestamps", func(t *testing.T) {
			t.Parallel()
			b := newShiftBed(t)
			s := b.scripted(b.B, b.A, false, 3001)
			s.clock = clock
			program := b.scriptedServer(s)
			defer program.Close()
			s.says("hello")
			got := make([]byte, 5)
			if _, err := io.ReadFull(program, got); err != nil || string(got) != "hello" {
				t.Fatalf("the program got %q, %v", got, err)
			}
			testkind.Eventually(t, "the connection is let go", func() (any, bool) { n := shifts(b.d[0]); return n, n == 1 && left(b.d[0]) == "" })
			forger := *s
			for _, off := range []uint32{1 << 30, 3 << 30} {
				if clock != 0 {
					forger.clock = clock + off
				}
				forger.forges(true)
			}
			b.must(program.SetReadDeadline(time.Now().Add(testkind.Patience)))
			for range 3 {
				if clock != 0 {
					s.clock++
				}
				s.says("world")
				if _, err := io.ReadFull(program, got); err != nil || string(got) != "world" {
					t.Fatalf("the program got %q, %v", got, err)
				}
				if _, err := io.WriteString(program, "again"); err != nil {
					t.Fatal(err)
				}
				s.wants("again")
			}
		})
	}
}

// victims are connections of others, which were taken.
func (b *bed) victims(n int) (all [][2]*net.TCPConn) {
	b.t.Helper()
	l := b.listen(b.B.Addr())
	for range n {
		client, server := b.connect(l)
		b.exchanges(client, server)
		all = append(all, [2]*net.TCPConn{client, server})
	}
	b.wantTaken(int64(n), int64(n))
	return all
}

// scriptedClient has s connect to a listening program of B, while others forge its packets at each stage.
func (b *bed) scriptedClient(s *scripted, l net.Listener) *net.TCPConn {
	b.t.Helper()
	taken := b.taken[1].Load()
	s.peer = addrPort(l)
	s.segment(layers.TCP{SYN: true}, s.snd, 0, withOption(), "")
	s.snd++
	synack := s.hears("SYN-ACK", func(t *layers.TCP) bool { return t.SYN && t.ACK && t.Ack == s.snd })
	if !announced(synack) {
		b.t.Fatal("the server does not announce SMC")
	}
	s.rcv = synack.Seq + 1
	s.forges(true) // it waits for the end of the handshake
	s.segment(layers.TCP{ACK: true}, s.snd, s.rcv, nil, "")
	testkind.Eventually(b.t, "the stack takes the connection", func() (any, bool) { n := b.taken[1].Load() - taken; return n, n == 1 })
	s.forges(true) // it waits for PROPOSAL
	s.says("may I")
	s.wants("you may")
	c, err := l.Accept()
	b.must(err)
	return c.(*net.TCPConn)
}

// scriptedServer has a program of A connect to s, likewise.
func (b *bed) scriptedServer(s *scripted) *net.TCPConn {
	b.t.Helper()
	taken := b.taken[0].Load()
	connected := make(chan net.Conn, 1)
	go func() {
		var c net.Conn
		if err := b.A.Do(func() (err error) {
			c, err = net.Dial("tcp", s.at.String())
			return err
		}); err != nil {
			b.t.Error(err)
		}
		connected <- c
	}()
	syn := s.hears("SYN", func(t *layers.TCP) bool { return t.SYN && !t.ACK })
	if !announced(syn) {
		b.t.Fatal("the client does not announce SMC")
	}
	s.rcv = syn.Seq + 1
	s.forges(false) // it waits for SYN-ACK
	s.segment(layers.TCP{SYN: true, ACK: true}, s.snd, s.rcv, withOption(), "")
	s.snd++
	testkind.Eventually(b.t, "the stack takes the connection", func() (any, bool) { n := b.taken[0].Load() - taken; return n, n == 1 })
	s.forges(true) // it waits for ACCEPT
	s.wants("may I")
	s.says("you may")
	c := <-connected
	if c == nil {
		b.t.FailNow()
	}
	return c.(*net.TCPConn)
}
