// SPDX-License-Identifier: Apache-2.0

package divert

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"smcr/internal/testing/testkind"
	"smcr/quota"
	"smcr/smc"
)

// few is how many connections of servers may be undecided in these tests, and of those how many strangers may have.
const (
	few          = 64
	fewStrangers = few - few/4
)

// waits is what a stack does with a peer that may say nothing: it waits, as long as the connection lasts.
func waits(_ *bed, f *Flow) {
	if err := agree(f); err != nil {
		f.Reset()
		return
	}
	_ = f.Splice()
}

// originBed is a bed whose server has a scripted host beside it, which makes connections from addresses and Ethernet addresses of its own.
type originBed struct {
	*bed
	l net.Listener
	s *scripted
}

// newOriginBed returns one. The subnets of the hosts are those of neighbours.
func newOriginBed(t *testing.T, v6 bool) *originBed {
	t.Helper()
	return newOriginBedWith(t, v6, func(c *Config) { c.undecided = few })
}

func newOriginBedWith(t *testing.T, v6 bool, tune func(*Config)) *originBed {
	t.Helper()
	o := &originBed{bed: newBedWith(t, waits, tune)}
	address := o.B.Addr()
	if v6 {
		address = o.B.Addr6()
	}
	var near []Place
	for _, p := range []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr(o.B.Addr()), 24), netip.PrefixFrom(netip.MustParseAddr(o.B.Addr6()), 64)} {
		near = append(near, Place{Dev: o.index(o.B, o.B.Links[0].Name), Prefix: p, Near: true})
	}
	o.must(o.d[1].SetPlaces(near))
	o.l = o.listen(address)
	o.s = o.scripted(o.A, o.B, v6, 3001)
	return o
}

// nth returns another endpoint: from the n-th address of the network of base, which B reaches by an Ethernet address.
func (o *originBed) nth(base netip.Addr, n int, mac byte) *scripted {
	o.t.Helper()
	a := base.AsSlice()
	a[len(a)-1] = byte(n)
	at, _ := netip.AddrFromSlice(a)
	x, w := *o.s, *o.s.wire
	x.wire = &w
	x.from = net.HardwareAddr{2, 0, 0, 0, 0x66, mac}
	x.at = netip.AddrPortFrom(at, uint16(4000+n))
	x.peer = addrPort(o.l)
	return &x
}

// neighbour has B know the Ethernet address of an endpoint.
func (o *originBed) neighbour(x *scripted) {
	o.t.Helper()
	o.must(o.B.Command(o.t.Context(), "ip", "neigh", "replace", x.at.Addr().String(), "lladdr", x.from.String(), "nud", "permanent", "dev", o.B.Links[0].Name).Run())
}

// opens begins a handshake, and ends it unless it is to stay half open. It reports whether the server has announced SMC.
func (x *scripted) opens(half bool) bool {
	x.t.Helper()
	x.segment(layers.TCP{SYN: true}, x.snd, 0, withOption(), "")
	x.snd++
	synack := x.hears("SYN-ACK", func(t *layers.TCP) bool { return t.SYN && t.ACK && t.Ack == x.snd })
	x.rcv = synack.Seq + 1
	if !half {
		x.segment(layers.TCP{ACK: true}, x.snd, x.rcv, nil, "")
	}
	return announced(synack)
}

// takes checks whether the server's stack takes a new connection of A's kernel, which works in any case.
func (o *originBed) takes(want bool) {
	o.t.Helper()
	before := o.taken[1].Load()
	client := o.dial(o.l)
	var server net.Conn
	for { // those of the attacker that are TCP come first
		c, err := o.l.Accept()
		o.must(err)
		o.t.Cleanup(func() { c.Close() })
		if c.RemoteAddr().String() == client.LocalAddr().String() {
			server = c
			break
		}
	}
	o.exchanges(client, server)
	if took := o.taken[1].Load() > before; took != want {
		o.t.Errorf("a new connection of another host is taken: %t, want %t", took, want)
	}
}

// TestUndecidedOfOrigin has one machine make connections that say nothing, or that stay half open, from many addresses; or a network behind
// a router. It has its share, what is beyond is TCP, and works. Another host that nobody knows uses SMC meanwhile.
func TestUndecidedOfOrigin(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	for _, from := range []string{"one machine", "one machine, IPv6", "behind a router", "behind a router, IPv6"} {
		for _, half := range []bool{false, true} {
			t.Run(from+map[bool]string{true: ", half open"}[half], func(t *testing.T) {
				t.Parallel()
				v6, routed := from == "one machine, IPv6" || from == "behind a router, IPv6", from == "behind a router" || from == "behind a router, IPv6"
				o := newOriginBed(t, v6)
				base := o.s.at.Addr()
				gateway := o.nth(base, 100, 1)
				if routed {
					base = netip.MustParseAddr(map[bool]string{false: "198.51.100.0", true: "2001:db8:77::"}[v6])
					o.neighbour(gateway)
					network := netip.PrefixFrom(base, map[bool]int{false: 24, true: 48}[v6])
					o.must(o.B.Command(t.Context(), "ip", "route", "add", network.String(), "via", gateway.at.Addr().String(), "dev", o.B.Links[0].Name).Run())
				}
				share := 0
				var plain *scripted
				for i := range fewStrangers {
					x := o.nth(base, 100+i, 1)
					if !routed {
						o.neighbour(x)
					}
					if x.opens(half) {
						share++
					} else {
						plain = x
					}
				}
				if share == 0 || share > fewStrangers/2 {
					t.Errorf("%d connections of one origin are announced, want %d at most", share, fewStrangers/2)
				}
				if plain == nil {
					t.Fatal("none is TCP")
				}
				if half {
					plain.segment(layers.TCP{ACK: true}, plain.snd, plain.rcv, nil, "")
				}
				o.takes(true)
				plain.says("hello") // its connection was accepted, and is one of TCP
				plain.hears("ACK", func(t *layers.TCP) bool { return t.ACK && !t.RST && t.Ack == plain.snd })
			})
		}
	}
}

// TestUndecidedOfStrangers has a host make up Ethernet addresses: it is as many machines as it wants. Those that are known have a part that
// it does not get; others are TCP. When the connections are over, nothing of them is counted.
func TestUndecidedOfStrangers(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	o := newOriginBed(t, false)
	var all []*scripted
	share := 0
	for i := range few {
		x := o.nth(o.s.at.Addr(), 100+i, byte(i))
		o.neighbour(x)
		if x.opens(false) {
			share++
			all = append(all, x)
		}
	}
	if share != fewStrangers {
		t.Errorf("%d connections of hosts that nobody knows are announced, want %d", share, fewStrangers)
	}
	o.takes(false)
	// Who only has the address of one that is known is not known.
	var mac [6]byte
	copy(mac[:], all[0].from)
	host := netip.MustParseAddr(o.A.Addr())
	o.must(o.d[1].SetKnown([]Known{{host, quota.OriginOfNeighbour(mac)}}))
	o.takes(false)
	copy(mac[:], o.s.from)
	o.must(o.d[1].SetKnown([]Known{{host, quota.OriginOfNeighbour(mac)}}))
	o.takes(true)
	o.must(o.d[1].SetKnown(nil))
	o.takes(false)
	for _, x := range all {
		x.segment(layers.TCP{RST: true}, x.snd, x.rcv, nil, "")
	}
	testkind.Eventually(t, "nothing is counted any more", func() (any, bool) { n := o.d[1].slots(); return n, n == 0 })
	o.takes(true)
}

// TestUndecidedOfUser has a listening socket of a user who may have few connections: an origin takes no more of them than another one can
// get.
func TestUndecidedOfUser(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	o := newOriginBed(t, false)
	const perUser, uid = 32, 60004
	b := newBedWith(t, waits, func(c *Config) { c.PerUser = perUser })
	o.bed = b
	o.must(b.B.Do(func() (err error) {
		var c net.ListenConfig
		c.SetMultipathTCP(false) // the socket has the user
		o.l, err = c.Listen(t.Context(), "tcp", net.JoinHostPort(b.B.Addr(), "0"))
		return err
	}))
	t.Cleanup(func() { o.l.Close() })
	o.must(chownedListener(o.l, uid))
	o.must(o.d[1].SetPlaces([]Place{{Dev: o.index(o.B, o.B.Links[0].Name), Prefix: netip.PrefixFrom(netip.MustParseAddr(o.B.Addr()), 24), Near: true}}))
	o.s = o.scripted(o.A, o.B, false, 3001)
	share := 0
	for i := range perUser {
		x := o.nth(o.s.at.Addr(), 100+i, 1)
		o.neighbour(x)
		if x.opens(false) {
			share++
		}
	}
	if share == 0 || share > perUser/4 {
		t.Errorf("%d connections of one origin are announced, want %d at most", share, perUser/4)
	}
	o.takes(true)
}

// TestMute has an origin whose connections say nothing: the next ones are not announced, those of others are. What it has said since
// counts, and it ends.
func TestMute(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	o := newOriginBed(t, false)
	flows := make(chan *Flow, few)
	o.bed = newBed(t, func(_ *bed, f *Flow) {
		if f.Role == smc.Server && f.Tuple.Remote.Addr() != netip.MustParseAddr(o.A.Addr()) {
			flows <- f
			return
		}
		waits(nil, f)
	})
	o.l = o.listen(o.B.Addr())
	o.s = o.scripted(o.A, o.B, false, 3001)
	o.must(o.d[1].SetPlaces([]Place{{Dev: o.index(o.B, o.B.Links[0].Name), Prefix: netip.PrefixFrom(netip.MustParseAddr(o.B.Addr()), 24), Near: true}}))
	last := 0
	silent := func(n int) (announced bool) {
		for range n {
			x := o.nth(o.s.at.Addr(), 100+last, 1)
			last++
			o.neighbour(x)
			if !x.opens(false) {
				return false
			}
			f := <-flows
			f.Silent()
			f.Reset()
		}
		return true
	}
	if !silent(quota.SilentMost + 1) {
		t.Fatal("a host that says nothing now and then is not announced to")
	}
	if silent(1) {
		t.Error("a host that says nothing is announced to for ever")
	}
	if all := o.d[1].Mutes(); len(all) != 1 || all[0].Left <= 0 || all[0].Left > quota.MuteFirst {
		t.Errorf("it is said to be silent: %v", all)
	}
	o.takes(true)
	counts, err := o.d[1].Counts()
	o.must(err)
	if len(counts) != 1 || counts[0].Why != smc.DiagSilent || counts[0].N != 1 {
		t.Errorf("counted is %v", counts)
	}
	// The time is over.
	d := o.d[1]
	d.mu.Lock()
	d.forgetSilents(time.Now().Add(3 * quota.MuteFirst))
	d.mu.Unlock()
	if !silent(1) || len(d.Mutes()) != 0 {
		t.Error("a host that said nothing is never announced to again")
	}
}

// TestHeldUnseen: a connection of which the held packet was lost, and nothing more comes, does not keep its place for ever.
func TestHeldUnseen(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	b := newBed(t, splice)
	client, server := b.connect(b.listen(b.B.Addr()))
	b.exchanges(client, server)
	d := b.d[1]
	key := Tuple{netip.MustParseAddrPort("192.0.2.1:80"), netip.MustParseAddrPort("192.0.2.2:1024")}.key()
	for _, role := range []smc.Role{smc.Server, smc.Client} {
		k := bpfFlow{Id: 1, Held: 1, Slots: [6]uint32{noSlot, noSlot, noSlot, noSlot, noSlot, noSlot}}
		if role == smc.Server {
			k.Server = 1
			*d.undecided.at(0)++
		}
		d.mu.Lock()
		d.recount(map[uint32]bpfCount{0: {All: ^uint64(0)}}) // it was announced
		d.mu.Unlock()
		b.must(put(d.bpf.Flows, key, &k, 0))
		b.must(put(d.bpf.Ways, key, &bpfWay{}, 0))
		d.expire()
		var w bpfWay
		if look(d.bpf.Flows, key, &k) == nil || look(d.bpf.Ways, key, &w) == nil {
			t.Errorf("%v: it is not forgotten", role)
		}
		if n := d.undecided.all(); n != 0 {
			t.Errorf("%v: %d are undecided", role, n)
		}
	}
	b.exchanges(client, server) // the others stay
	client.Close()
	server.Close()
	b.gone()
}

// TestSizesOfUndecided: the tables have room for what is written to them.
func TestSizesOfUndecided(t *testing.T) {
	spec, err := loadBpf()
	if err != nil {
		t.Fatal(err)
	}
	if n := spec.Maps[bpfMapMutes].MaxEntries; n != quota.MostSilents {
		t.Errorf("map mutes takes %d, want %d", n, quota.MostSilents)
	}
	if n := fmt.Sprint(spec.Maps[bpfMapUndecided].ValueSize); n != "8" {
		t.Errorf("a count has %s bytes", n)
	}
}

// slots returns the sum of what is counted as undecided.
func (d *Diverter) slots() (n int64) {
	for i := range uint32(len(d.undecided.b) / 8) {
		n += max(*d.undecided.at(i), -*d.undecided.at(i))
	}
	return n
}
