// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"smcr/rdmaverbs"
	"smcr/smc"
)

// simNetwork joins in-memory wires. Each packet may be lost, doubled, delayed
// and so reordered, as its seed decides. In a synctest bubble time passes
// only while everybody waits.
type simNetwork struct {
	faults simFaults

	mu    sync.Mutex
	rng   *rand.Rand
	wires map[smc.GID]*simWire
	count simCount
	// tap sees each packet as it is sent and may drop or change it.
	tap func(from, to smc.GID, data []byte) (drop bool)
}

// simFaults are probabilities and times of a network.
type simFaults struct {
	loss, dup, reorder float64
	delay              time.Duration // of each packet
	jitter             time.Duration // added to reordered packets, at most
}

type simCount struct {
	sent, lost, doubled, reordered int
	empty                          int // calls of send without packets
	aside                          int // packets that went through another netdev
}

func newSimNetwork(seed uint64, f simFaults) *simNetwork {
	return &simNetwork{faults: f, rng: rand.New(rand.NewPCG(seed, 1)), wires: make(map[smc.GID]*simWire)}
}

// simWire is one end: a goroutine that delivers packets when they are due.
type simWire struct {
	net  *simNetwork
	gid  smc.GID
	one  sync.Mutex // held while h runs
	h    handler
	kick chan struct{}
	quit chan struct{}
	done chan struct{}

	mu     sync.Mutex
	queue  []simPacket // by due time, then by arrival
	down   bool
	closed bool
}

type simPacket struct {
	due time.Time
	in  inbound
}

func (f *simNetwork) wire(gid smc.GID) *simWire {
	w := &simWire{net: f, gid: gid, kick: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	f.mu.Lock()
	f.wires[gid] = w
	f.mu.Unlock()
	return w
}

func (w *simWire) send(dst *path, pkts []packet) error {
	w.mu.Lock()
	down, closed := w.down, w.closed
	w.mu.Unlock()
	if closed {
		return errWireClosed
	}
	if !down {
		w.forward(dst, pkts)
	}
	return nil
}

// sendViaSiblings sends also while the wire is down, as through another netdev.
func (w *simWire) sendViaSiblings(dst *path, pkts []packet) {
	w.net.mu.Lock()
	w.net.count.aside += len(pkts)
	w.net.mu.Unlock()
	w.forward(dst, pkts)
}

// forward gives packets to the wire that they are for.
func (w *simWire) forward(dst *path, pkts []packet) {
	f := w.net
	f.mu.Lock()
	if len(pkts) == 0 {
		f.count.empty++
	}
	to := f.wires[dst.dgid]
	now := time.Now()
	var out []simPacket
	for i := range pkts {
		p := &pkts[i]
		data := slices.Concat(p.hdr, p.payload[0], p.payload[1])
		for range p.hdr[1] >> 4 & 3 {
			data = append(data, 0)
		}
		f.count.sent++
		if f.tap != nil && f.tap(dst.sgid, dst.dgid, data) {
			f.count.lost++
			continue
		}
		copies := 1
		switch x := f.rng.Float64(); {
		case x < f.faults.loss:
			f.count.lost++
			copies = 0
		case x < f.faults.loss+f.faults.dup:
			f.count.doubled++
			copies = 2
		}
		for range copies {
			due := now.Add(f.faults.delay)
			if f.rng.Float64() < f.faults.reorder {
				f.count.reordered++
				due = due.Add(time.Duration(f.rng.Int64N(int64(f.faults.jitter) + 1)))
			}
			out = append(out, simPacket{due: due, in: inbound{typ: dst.typ, sgid: dst.sgid, dgid: dst.dgid, srcPort: simPort(dst), data: data}})
		}
	}
	f.mu.Unlock()
	if to != nil {
		to.put(out)
	}
}

func (w *simWire) sourcePort(p *path) uint16 { return simPort(p) }

// simPort returns the UDP source port of packets on a path.
func simPort(dst *path) uint16 {
	if dst.typ != rdmaverbs.RoCEv2 {
		return 0
	}
	return minSourcePort + dst.flow%srcPorts
}

func (w *simWire) put(pkts []simPacket) {
	w.mu.Lock()
	if w.down {
		pkts = nil
	}
	for _, p := range pkts {
		i, _ := slices.BinarySearchFunc(w.queue, p, func(a, b simPacket) int {
			if a.due.After(b.due) {
				return 1
			}
			return -1
		})
		w.queue = slices.Insert(w.queue, i, p)
	}
	w.mu.Unlock()
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

func (w *simWire) start(h handler) error {
	w.h = h
	go w.run()
	return nil
}

func (w *simWire) run() {
	defer close(w.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		w.mu.Lock()
		now := time.Now()
		n := 0
		var batch []inbound
		for n < len(w.queue) && !w.queue[n].due.After(now) {
			batch = append(batch, w.queue[n].in)
			n++
		}
		w.queue = slices.Delete(w.queue, 0, n)
		wait := time.Hour
		if len(w.queue) > 0 {
			wait = w.queue[0].due.Sub(now)
		}
		w.mu.Unlock()
		if len(batch) > 0 {
			w.receive(batch)
			continue
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-w.kick:
		case <-w.quit:
			return
		}
	}
}

// receive has the device receive packets at once.
func (w *simWire) receive(batch []inbound) {
	w.one.Lock()
	defer w.one.Unlock()
	w.h(batch)
}

func (w *simWire) setDown(down bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = down
	if down {
		w.queue = nil
	}
}

func (w *simWire) close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	if w.h != nil {
		close(w.quit)
		<-w.done
	}
	return nil
}

// simDevice makes a device on the network, whose MAC ends with n.
func (f *simNetwork) simDevice(t testing.TB, n byte, opts ...Option) (*Device, *simWire) {
	t.Helper()
	mac := [6]byte{0x02, 0, 0, 0, 0, n}
	w := f.wire(defaultGID(mac))
	info := netdevInfo{
		Name: "sim" + string('0'+rune(n)), Index: int(n), HWAddr: net.HardwareAddr(mac[:]),
		MTU: 9000, Up: true, GIDs: gidTable("sim", mac, nil),
	}
	p := New(append([]Option{WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	d, err := newDevice(namePrefix+info.Name, w, info, p.c)
	if err != nil {
		t.Fatal(err)
	}
	return d, w
}

// simPair makes two devices.
func (f *simNetwork) simPair(t testing.TB, opts ...Option) (a, b *Device) {
	a, _ = f.simDevice(t, 1, opts...)
	b, _ = f.simDevice(t, 2, opts...)
	return a, b
}
