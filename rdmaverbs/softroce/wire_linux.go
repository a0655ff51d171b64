// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"smcr/guard"
	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"

	"golang.org/x/sys/unix"
)

func nativeUint32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

// ioBatch is the largest number of packets for one call of the handler or one
// system call: a batch and its acknowledgement.
const ioBatch = batchLen + 1

// netWire is the wire of one netdev, with a packet socket for RoCE version 1
// and UDP sockets for version 2.
//
// Sending is safe for concurrent use. The sockets belong to the network
// namespace of the thread that called openWire.
type netWire struct {
	netns    uint64
	siblings *siblings // nil if there are none
	log      *slog.Logger
	guard    *guard.Guard // nil: panics end the process
	index    int
	loopback bool
	self     atomic.Pointer[identity]
	gone     atomic.Bool
	v1       *packetPort // nil without version 1
	v2       *udpPorts   // nil without version 2
	lacks    error       // why there is no version 2 although it was asked for
	ll       *llPort     // nil without version 2
	watch    io.Closer
	loop     *loop
	pollers  []Poller  // if empty, each socket has a goroutine
	shards   []handler // of version 2; nil if the first handles all packets
	stats    wireCounters

	one serial // runs the handler, set by start

	mu          sync.RWMutex // guards the descriptors against close
	closed      bool
	started     bool
	stopping    atomic.Bool
	quit        chan struct{} // closed by release
	receivers   sync.WaitGroup
	releaseOnce sync.Once
}

// serial runs a handler in one goroutine at a time.
type serial struct {
	mu sync.Mutex
	h  handler
}

// identity has the addresses of the port at one moment. They decide which
// packets it accepts.
type identity struct {
	mac        [6]byte
	v1         []smc.GID
	v2         []smc.GID
	mtu        int
	def        smc.GID // the default GID
	defForeign bool    // def is not an address of the netdev
}

func newIdentity(i *netdevInfo) *identity {
	id := &identity{mac: [6]byte(i.HWAddr), mtu: i.MTU, defForeign: !i.hasDefault}
	id.def = defaultGID(id.mac)
	for _, e := range i.GIDs {
		if e.Type == rdmaverbs.RoCEv2 {
			id.v2 = append(id.v2, e.GID)
		} else {
			id.v1 = append(id.v1, e.GID)
		}
	}
	return id
}

// portTakenError means that RoCE version 2 cannot be used on a netdev because
// its UDP port is in use.
type portTakenError struct {
	netdev string
	err    error
}

func (e *portTakenError) Error() string {
	on := ""
	if e.netdev != "" {
		on = " on netdev " + e.netdev
	}
	return fmt.Sprintf("softroce: RoCE version 2%s needs UDP port %d, which another program or the kernel's "+
		"soft-RoCE has: look at 'ss -lunp sport = :%d' and 'rdma link', end the program or 'modprobe -r rdma_rxe': %v",
		on, header.UDPPortRoCE, header.UDPPortRoCE, e.err)
}

func (e *portTakenError) Unwrap() error { return e.err }

// openWire opens the packet I/O on a netdev of the calling thread's network
// namespace for the GID types of c, and reads the facts about it. It needs
// CAP_NET_RAW. An unknown name gives an error that wraps rdmaverbs.ErrNoDevice.
//
// If UDP port 4791 is in use, by the kernel's rxe or by another wire on the
// same netdev, the wire has version 1 only, info.GIDs has no version 2 entries,
// and lacks is the reason. If c wants only version 2, err is the reason.
func openWire(netdev string, c config) (_ wire, info *netdevInfo, lacks, err error) {
	f, err := newFacts()
	if err != nil {
		return nil, nil, nil, err
	}
	defer f.close()
	if info, err = f.byName(netdev); err != nil {
		return nil, nil, nil, err
	}
	w := &netWire{log: c.log, guard: c.guard, siblings: c.siblings, index: info.Index, loopback: info.loopback, pollers: c.pollers, loop: newLoop(), quit: make(chan struct{})}
	defer func() {
		if err != nil {
			w.release()
		}
	}()
	if w.netns, err = netnsID(); err != nil {
		return nil, nil, nil, err
	}
	w.self.Store(newIdentity(info))
	if c.wants(rdmaverbs.RoCEv1) {
		if w.v1, err = openPacketPort(info, !c.noRing); err != nil {
			return nil, nil, nil, fmt.Errorf("%w (netdev %s)", err, netdev)
		}
	}
	if c.wants(rdmaverbs.RoCEv2) {
		w.v2, err = openUDPPorts(info, max(1, len(c.pollers)), c.inherited)
		switch {
		case err == nil:
		case !errors.Is(err, unix.EADDRINUSE):
			return nil, nil, nil, fmt.Errorf("%w (netdev %s)", err, netdev)
		case w.v1 == nil:
			return nil, nil, nil, &portTakenError{netdev, err}
		default:
			lacks = &portTakenError{netdev, err}
			w.lacks = lacks
		}
	}
	if w.v2 != nil {
		if w.ll, err = newLLPort(info); err != nil {
			return nil, nil, nil, fmt.Errorf("%w (netdev %s)", err, netdev)
		}
	}
	if w.v2 != nil && c.noGSO {
		w.v2.noGSO.Store(true)
		w.ll.noGSO.Store(true)
	}
	if w.watch, err = watchNetdev(info.Index, c.guard, w.changed); err != nil {
		return nil, nil, nil, err
	}
	info.GIDs = slices.DeleteFunc(info.GIDs, func(e rdmaverbs.GIDEntry) bool {
		return e.Type == rdmaverbs.RoCEv1 && w.v1 == nil || e.Type == rdmaverbs.RoCEv2 && w.v2 == nil
	})
	return w, info, lacks, nil
}

// changed handles a report of the netdev watch.
func (w *netWire) changed(c netdevChange) {
	if c.Gone {
		w.gone.Store(true)
		return
	}
	self := newIdentity(&c.Info)
	w.self.Store(self)
	if w.ll != nil {
		if err := w.ll.follow(self); err != nil {
			w.log.Error("the default GID cannot receive over RoCE version 2", "netdev", c.Info.Name, "err", err)
		}
	}
}

// counters returns the present counters.
func (w *netWire) counters() wireStats {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if !w.closed {
		w.countOverruns()
	}
	return w.stats.snapshot()
}

// countOverruns updates the counters of overruns.
func (w *netWire) countOverruns() {
	if w.v1 != nil {
		w.stats.overrunsV1.Add(w.v1.overruns())
	}
	w.stats.overrunsLoop.Store(w.loop.dropped())
	if w.v2 != nil {
		w.stats.overrunsV2.Store(w.v2.overruns())
		w.stats.overrunsV1.Add(w.ll.overruns())
	}
}

// send implements wire.
func (w *netWire) send(dst *path, pkts []packet) error {
	w.mu.RLock()
	defer w.mu.RUnlock()
	switch {
	case w.closed:
		return errWireClosed
	case w.gone.Load():
		return errNetdevGone
	}
	if w.isSelf(dst) {
		w.loop.send(dst, w.sourcePort(dst), pkts)
		w.countLooped(pkts)
		return nil
	}
	if dst.typ == rdmaverbs.RoCEv2 && w.siblings.send(w, dst, pkts) {
		w.countLooped(pkts)
		return nil
	}
	return w.transmit(w.sources(), dst, pkts)
}

// sourcePort implements wire.
func (w *netWire) sourcePort(p *path) uint16 { return w.sources().port(p) }

// sources returns the sending sockets of version 2, or nil without version 2.
func (w *netWire) sources() *sourcePorts {
	if w.v2 == nil {
		return nil
	}
	return &w.v2.tx
}

// transmit sends packets over the netdev, those of version 2 from the ports of from.
// w.mu is held.
func (w *netWire) transmit(from *sourcePorts, dst *path, pkts []packet) error {
	tx := txPool.Get().(*txBatch)
	defer txPool.Put(tx)
	for len(pkts) > 0 {
		n := min(len(pkts), ioBatch)
		var err error
		switch {
		case dst.typ != rdmaverbs.RoCEv2:
			err = w.sendV1(tx, dst, pkts[:n])
		case w.bypassesIP(dst):
			err = w.sendLL(tx, from.port(dst), dst, pkts[:n])
		default:
			err = w.sendV2(tx, from, dst, pkts[:n])
		}
		if err != nil {
			return err
		}
		pkts = pkts[n:]
	}
	return nil
}

// isSelf reports whether dst is this port. On lo it returns false, because the
// kernel returns packets there.
func (w *netWire) isSelf(dst *path) bool {
	if w.loopback {
		return false
	}
	self := w.self.Load()
	if dst.typ == rdmaverbs.RoCEv2 {
		return slices.Contains(self.v2, dst.dgid)
	}
	return slices.Contains(self.v1, dst.dgid)
}

func (w *netWire) countLooped(pkts []packet) {
	var bytes int
	for i := range pkts {
		bytes += transportLen(&pkts[i])
	}
	w.stats.txPackets.Add(uint64(len(pkts)))
	w.stats.txBytes.Add(uint64(bytes))
}

// start implements wire.
func (w *netWire) start(h handler) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return errWireClosed
	}
	if w.started {
		return errors.New("softroce: wire was started twice")
	}
	w.started = true
	// Each socket has a goroutine. Only one at a time runs h.
	w.one.h = h
	serial := w.handle
	if w.v1 != nil {
		if err := w.read(w.v1.sock, w.ringReader(w.v1, serial)); err != nil {
			return err
		}
	}
	w.receivers.Go(func() {
		take := guardReader(w.guard, func() bool { w.loop.run(w.quit, serial, &w.stats, w.self.Load); return false }, w.loop.drop)
		for take() {
		}
	})
	if w.lacks != nil && w.siblings != nil {
		w.siblings.lacks(w)
	}
	if w.v2 != nil {
		for family, s := range w.v2.sock {
			if s == nil {
				continue
			}
			if err := w.read(s, w.udpReader(s, family, serial)); err != nil {
				return err
			}
			for i, s := range w.v2.more[family] {
				if err := w.readShard(s, family, i+1, serial); err != nil {
					return err
				}
			}
		}
		if w.siblings != nil {
			w.siblings.add(w)
		}
		w.ll.started(func() {
			if err := w.read(w.ll.sock, w.llReader(serial)); err != nil {
				w.log.Error("the default GID receives nothing over RoCE version 2", "err", err)
			}
		})
	}
	return nil
}

// read calls take when s is readable, again as long as it returns true. The
// first Poller does this, or a new goroutine if there is no Poller.
func (w *netWire) read(s *socket, take func() bool) error {
	if len(w.pollers) > 0 {
		return s.watch(w.pollers[0], &w.stopping, take)
	}
	if err := s.pollable(); err != nil {
		return err
	}
	// No guard: take has one.
	w.receivers.Go(func() { s.whenReadable(&w.stopping, take) })
	return nil
}

// readShard reads a UDP socket of version 2 with the Poller of shard n. If the sockets are
// those of another process, there may be more of them than Pollers.
func (w *netWire) readShard(s *socket, family, n int, serial handler) error {
	if len(w.shards) < 2 {
		return w.read(s, w.udpReader(s, family, serial))
	}
	n %= len(w.shards)
	h := w.shards[n]
	if n == 0 {
		h = serial
	}
	return s.watch(w.pollers[n], &w.stopping, w.udpReader(s, family, h))
}

// spread implements spreader.
func (w *netWire) spread(hs []handler) { w.shards = hs }

// handle calls the handler for a batch.
func (w *netWire) handle(batch []inbound) {
	w.one.mu.Lock()
	defer w.one.mu.Unlock()
	w.one.h(batch)
}

// close implements wire. It must not be called by the handler.
func (w *netWire) close() error {
	w.mu.Lock()
	if !w.closed {
		w.countOverruns()
		w.closed = true // nobody sends any more
	}
	w.mu.Unlock()
	w.releaseOnce.Do(w.release)
	return nil
}

// release ends the reception and frees everything that openWire opened.
func (w *netWire) release() {
	w.stopping.Store(true)
	if w.v2 != nil {
		w.v2.hand.Lock()
		defer w.v2.hand.Unlock()
	}
	if w.siblings != nil {
		w.siblings.remove(w)
	}
	close(w.quit)
	if w.watch != nil {
		w.watch.Close()
	}
	// The close of a packet socket takes some 10 ms, or much longer on a busy machine. A
	// Poller that still has other sockets would find packets in each of its rounds, which
	// nobody reads any more.
	for _, s := range w.readers() {
		s.leavePoller()
	}
	if w.v2 != nil {
		w.v2.tap.close()
		w.v2.close()
	}
	if w.ll != nil {
		w.ll.close()
	}
	if w.v1 != nil {
		w.v1.close()
	}
	w.receivers.Wait()
	if w.v1 != nil {
		w.v1.unmap()
	}
}

// readers returns the sockets that receive. w.v2.hand is held.
func (w *netWire) readers() (all []*socket) {
	if w.v1 != nil {
		all = append(all, w.v1.sock)
	}
	if w.ll != nil {
		all = append(all, w.ll.sock)
	}
	if w.v2 == nil {
		return all
	}
	for family := range w.v2.sock {
		all = append(all, w.v2.receivers(family)...)
		if t := w.v2.tap; t != nil && t.sock[family] != nil {
			all = append(all, t.sock[family])
		}
	}
	return all
}

// ringReader returns a function that gives packets of a packet socket to h. The
// function reports whether there may be more.
func (w *netWire) ringReader(p *packetPort, h handler) func() bool {
	rx := newRxBatch()
	return guardReader(w.guard, func() bool {
		more := p.take(rx, w.self.Load(), &w.stats)
		if len(rx.in) > 0 {
			h(rx.in)
			rx.reset()
		}
		p.free()
		return more
	}, func() { rx.reset(); p.free() })
}

// udpReader returns a function that gives version 2 packets over IPv4 or IPv6
// to h. The function reports whether there may be more.
func (w *netWire) udpReader(s *socket, family int, h handler) func() bool {
	rx := newRxBatch()
	rx.udp = newUDPRx()
	return guardReader(w.guard, func() bool { return w.take(s, family, rx, h) }, rx.reset)
}

// rxBatch is the reused memory of one batch of received packets.
type rxBatch struct {
	pre header.Prefix
	udp *udpRx // nil without version 2
	in  []inbound
}

func newRxBatch() *rxBatch { return &rxBatch{in: make([]inbound, 0, ioBatch)} }

func (b *rxBatch) reset() { b.in = b.in[:0] }
