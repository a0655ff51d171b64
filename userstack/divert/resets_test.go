// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/smc"
)

// A fate is what becomes of the device of a program's connection, by lines of ip. PEER is the other host, V4, V6, PEER4 and PEER6 are
// addresses of this one and of the other.
type fate struct {
	name  string
	lines []string
}

// again makes a device like the one that is gone.
var again = []string{
	"ip link add eth0 index 4711 type veth peer name far0 netns PEER", "ip addr add V4/24 dev eth0", "ip -6 addr add V6/64 dev eth0 nodad", "ip link set eth0 up",
}

var fates = []fate{
	{"unharmed", nil},
	{"down", []string{"ip link set eth0 down"}},
	{"deleted", []string{"ip link del eth0"}},
	{"down, then deleted", []string{"ip link set eth0 down", "ip link del eth0"}},
	{"deleted, and made again", append([]string{"ip link del eth0"}, again...)},
	{"deleted with the loopback device down", []string{"ip link del eth0", "ip link set lo down"}},
	{"renamed", []string{"ip link set eth0 down", "ip link set eth0 name new0", "ip link set new0 up"}},
	{"moved to another namespace", []string{"ip link set eth0 netns PEER name away0"}},
	{"moved, and made again", append([]string{"ip link set eth0 netns PEER name away0"}, again...)},
	{"without addresses", []string{"ip addr flush dev eth0"}},
	{"without addresses for a moment", []string{"ip addr flush dev eth0", "ip addr add V4/24 dev eth0", "ip -6 addr add V6/64 dev eth0 nodad"}},
	{"another one by a route", []string{
		"ip link add other0 type veth peer name rest0", "ip link set rest0 up", "ip link set other0 up", "ip route add PEER4/32 dev other0",
		"sysctl -qw net.ipv4.conf.all.rp_filter=1",
	}},
}

// befall does what becomes of the device of a host.
func (b *bed) befall(of smc.Role, lines []string) {
	b.t.Helper()
	h, peer := b.A, b.B
	if of == smc.Server {
		h, peer = peer, h
	}
	words := strings.NewReplacer("PEER4", peer.Addr(), "PEER6", peer.Addr6(), "PEER", peer.Name, "V4", h.Addr(), "V6", h.Addr6())
	for _, line := range lines {
		argv := strings.Fields(words.Replace(line))
		if out, err := h.Command(b.t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
			b.t.Fatalf("%q: %v: %s", line, err, out)
		}
	}
}

// ways are those to reset a connection of a program.
var ways = []struct {
	name    string
	spliced bool
	reset   func(*Flow)
}{
	{"carried, reset", false, (*Flow).Reset},
	{"carried, finished with a reset", false, func(f *Flow) { f.Finish(true) }},
	{"carried, the program first", false, func(f *Flow) { f.ResetProgram(); f.Finish(false) }},
	{"declined, reset", true, (*Flow).Reset},
}

// program is that of a connection of a resetBed.
type program struct {
	name  string
	conn  net.Conn
	flow  *Flow
	reset func(*Flow)
}

// resetBed returns a bed with connections of each family and way, whose programs at the host of a role are to be reset.
func resetBed(t *testing.T, of smc.Role) (b *bed, all []program) {
	t.Helper()
	var mu sync.Mutex
	spliced := map[uint16]bool{} // by the port of the server
	flows := make(chan *Flow, 1)
	b = newBed(t, func(b *bed, f *Flow) {
		if err := agree(f); err != nil {
			b.t.Errorf("%v: %v", f.Role, err)
			f.Reset()
			return
		}
		port := f.Tuple.Remote.Port()
		if f.Role == smc.Server {
			port = f.Tuple.Local.Port()
		}
		mu.Lock()
		splices := spliced[port]
		mu.Unlock()
		if f.Role != of {
			_ = f.Splice()
			return
		}
		flows <- f
		if splices {
			_ = f.Splice()
			return
		}
		_, giveBack, err := f.Split()
		if err != nil {
			b.t.Errorf("%v: %v", f.Role, err)
			return
		}
		giveBack()
	})
	for family, address := range addresses {
		for _, w := range ways {
			l := b.listen(address(b.B))
			mu.Lock()
			spliced[uint16(l.Addr().(*net.TCPAddr).Port)] = w.spliced
			mu.Unlock()
			client, server := b.connect(l)
			p := program{fmt.Sprint(family, ", ", w.name), client, <-flows, w.reset}
			if of == smc.Server {
				p.conn = server
			}
			all = append(all, p)
		}
	}
	return b, all
}

// resetsHeard resets the connections, and checks that the programs hear of it.
func resetsHeard(t *testing.T, all []program, wanted ...error) {
	t.Helper()
	var wait sync.WaitGroup
	for _, p := range all {
		wait.Go(func() {
			if err := p.conn.SetReadDeadline(time.Now().Add(testkind.Patience)); err != nil {
				t.Errorf("%s: %v", p.name, err)
			}
			_, err := p.conn.Read(make([]byte, 1))
			for _, w := range wanted {
				if errors.Is(err, w) {
					return
				}
			}
			t.Errorf("%s: read: %v, want one of %v", p.name, err, wanted)
		})
	}
	for _, p := range all {
		p.reset(p.flow)
	}
	wait.Wait()
}

// TestResetHeard has a stack reset connections whose device has met any fate: the programs hear of it.
func TestResetHeard(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	var c cases
	for _, of := range []smc.Role{smc.Client, smc.Server} {
		for _, f := range fates {
			if c.skips() {
				continue
			}
			t.Run(fmt.Sprint(of, "/", f.name), func(t *testing.T) {
				t.Parallel()
				b, all := resetBed(t, of)
				b.befall(of, f.lines)
				want := []error{syscall.ECONNRESET}
				if len(f.lines) > 0 {
					want = append(want, syscall.ECONNABORTED)
				}
				resetsHeard(t, all, want...)
			})
		}
	}
}

// TestResetHeardBound has the socket bound to its device, so that packets by no other one are for it.
func TestResetHeardBound(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	var c cases
	for _, f := range fates {
		if c.skips() {
			continue
		}
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			flows := make(chan *Flow, 1)
			b := newBed(t, func(b *bed, f *Flow) {
				if err := agree(f); err != nil {
					b.t.Errorf("%v: %v", f.Role, err)
					f.Reset()
					return
				}
				if f.Role == smc.Client {
					flows <- f
				}
				_ = f.Splice()
			})
			b.control = func(_, _ string, c syscall.RawConn) (err error) {
				if cerr := c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), "eth0") }); cerr != nil {
					return cerr
				}
				return err
			}
			c := b.dial(b.listen(b.B.Addr()))
			p := program{f.name, c, <-flows, (*Flow).Reset}
			b.befall(smc.Client, f.lines)
			resetsHeard(t, []program{p}, syscall.ECONNRESET, syscall.ECONNABORTED)
		})
	}
}

// TestResetHeardAtEnd has a stack end whose programs have no device any more: they hear of it all the same.
func TestResetHeardAtEnd(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	for _, of := range []smc.Role{smc.Client, smc.Server} {
		t.Run(of.String(), func(t *testing.T) {
			t.Parallel()
			b, all := resetBed(t, of)
			b.befall(of, []string{"ip link del eth0"})
			d := b.d[0]
			if of == smc.Server {
				d = b.d[1]
			}
			for i := range all {
				all[i].reset = func(*Flow) {}
			}
			closed := make(chan error, 1)
			go func() { closed <- d.Close() }()
			resetsHeard(t, all, syscall.ECONNABORTED)
			b.must(<-closed)
		})
	}
}

// TestResetHeardAfterKill has a stack killed whose program has no device any more: the next stack has the program hear of it.
func TestResetHeardAfterKill(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b, p := newKilled(t)
	client, server := b.connect(b.listen(b.B.Addr()))
	b.wantTaken(0, 1)
	b.befall(smc.Client, []string{"ip link add second0 type veth peer name third0", "ip link set eth0 down"})
	p.Kill()
	b.must(client.SetReadDeadline(time.Now().Add(5 * resetTime)))
	var timeout interface{ Timeout() bool }
	if n, err := client.Read(make([]byte, 1)); n != 0 || !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("read %d bytes, %v, before there is another stack", n, err)
	}
	b.must(b.A.Do(func() (err error) {
		if b.d[0], err = New(b.d[0].cfg); err != nil {
			return err
		}
		return b.d[0].Follow(func(string) bool { return true })
	}))
	defer b.d[0].Close()
	resetsHeard(t, []program{{"client", client, nil, func(*Flow) {}}}, syscall.ECONNABORTED)
	_ = server
}

// TestRefusedUnheard has the stack of a server reset a connection before it was agreed on, while its device is down: when that is up
// again, what the peer repeats to the stack is no data for the program.
func TestRefusedUnheard(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	for family, address := range addresses {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			asked, refused := make(chan struct{}), make(chan struct{})
			b := newBed(t, func(b *bed, f *Flow) {
				if f.Role == smc.Server {
					if err := b.B.SetLink(0, false); err != nil {
						b.t.Error(err)
					}
					close(asked)
					f.Reset()
					close(refused)
					return
				}
				<-asked
				if err := agree(f); err == nil {
					b.t.Error("the client's stack has an answer")
				}
				f.Reset()
			})
			keepAddresses(t, b.B)
			l := b.listen(address(b.B))
			hears := make(chan string, 1)
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						hears <- ""
						return
					}
					got := make([]byte, 9)
					if n, _ := c.Read(got); n > 0 {
						hears <- string(got[:n])
					}
					c.Close()
				}
			}()
			dialled := make(chan error, 1)
			go func() {
				dialled <- b.A.Do(func() error {
					c, err := net.DialTimeout("tcp", l.Addr().String(), testkind.Patience)
					if err == nil {
						_ = c.SetReadDeadline(time.Now().Add(testkind.Patience))
						_, err = c.Read(make([]byte, 1))
						c.Close()
					}
					return err
				})
			}()
			<-refused
			time.Sleep(2 * linger) // Real time: the stack has forgotten the connection.
			b.must(b.B.SetLink(0, true))
			if err := <-dialled; err == nil {
				t.Error("the client has a connection")
			}
			l.Close()
			if got := <-hears; got != "" {
				t.Errorf("the server's program got %q", got)
			}
		})
	}
}
