// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce/header"

	"golang.org/x/sys/unix"
)

func nativeUint32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }

// ioBatch is how many packets go to the handler, or to a system call, at
// once.
const ioBatch = 64

// netWire is the wire of one netdev: RoCE version 1 by a packet socket, and
// version 2 by UDP sockets where port 4791 is free.
//
// Sending is safe for concurrent use. One goroutine receives from all
// sockets. The sockets belong to the network namespace of the thread that
// called openWire.
type netWire struct {
	index    int
	loopback bool
	self     atomic.Pointer[identity]
	gone     atomic.Bool
	v1       *packetPort
	v2       *udpPorts
	watch    io.Closer
	wake     int // eventfd that ends the reception
	stats    wireCounters

	mu      sync.RWMutex // guards the descriptors against close
	closed  bool
	started bool
	done    chan struct{} // closed when the reception has ended
}

// identity is who we are at one moment: which packets are ours.
type identity struct {
	mac [6]byte
	v1  []rdmaverbs.GID
	v2  []rdmaverbs.GID
}

func newIdentity(i *netdevInfo) *identity {
	id := &identity{mac: [6]byte(i.HWAddr)}
	for _, e := range i.GIDs {
		if e.Type == rdmaverbs.RoCEv2 {
			id.v2 = append(id.v2, e.GID)
		} else {
			id.v1 = append(id.v1, e.GID)
		}
	}
	return id
}

// openWire opens the packet I/O on a netdev of the calling thread's network
// namespace, and reads the facts about it. It needs CAP_NET_RAW. An unknown
// name gives an error that wraps rdmaverbs.ErrNoDevice. Where UDP port 4791
// is taken (by the kernel's rxe, or by another wire on the same netdev) the
// wire does version 1 only, and info.GIDs has no version 2 entries.
func openWire(netdev string) (_ wire, info *netdevInfo, err error) {
	f, err := newFacts()
	if err != nil {
		return nil, nil, err
	}
	defer f.close()
	if info, err = f.byName(netdev); err != nil {
		return nil, nil, err
	}
	w := &netWire{index: info.Index, loopback: info.loopback, wake: -1, done: make(chan struct{})}
	defer func() {
		if err != nil {
			w.release()
		}
	}()
	w.self.Store(newIdentity(info))
	if w.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, nil, fmt.Errorf("softroce: eventfd: %w", err)
	}
	if w.v1, err = openPacketPort(info.Index); err != nil {
		return nil, nil, fmt.Errorf("%w (netdev %s)", err, netdev)
	}
	if w.v2, err = openUDPPorts(info); err != nil && !errors.Is(err, unix.EADDRINUSE) {
		return nil, nil, fmt.Errorf("%w (netdev %s)", err, netdev)
	}
	if w.watch, err = watchNetdev(info.Index, w.changed); err != nil {
		return nil, nil, err
	}
	// What changed before the watch began is seen now.
	if info, err = f.byName(netdev); err != nil {
		return nil, nil, err
	}
	w.changed(netdevChange{Info: *info})
	if w.v2 == nil {
		info.GIDs = slices.DeleteFunc(info.GIDs, func(e rdmaverbs.GIDEntry) bool { return e.Type == rdmaverbs.RoCEv2 })
	}
	return w, info, nil
}

// changed follows what the watch reports.
func (w *netWire) changed(c netdevChange) {
	if c.Gone {
		w.gone.Store(true)
		return
	}
	w.self.Store(newIdentity(&c.Info))
}

// counters returns what was sent, received and dropped so far.
func (w *netWire) counters() wireStats {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if !w.closed {
		w.countOverruns()
	}
	return w.stats.snapshot()
}

// countOverruns brings the count of overruns up to date.
func (w *netWire) countOverruns() {
	w.stats.overrunsV1.Add(w.v1.overruns())
	if w.v2 != nil {
		w.stats.overrunsV2.Store(w.v2.overruns())
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
	tx := txPool.Get().(*txBatch)
	defer txPool.Put(tx)
	for len(pkts) > 0 {
		n := min(len(pkts), ioBatch)
		var err error
		if dst.typ == rdmaverbs.RoCEv2 {
			err = w.sendV2(tx, dst, pkts[:n])
		} else {
			err = w.sendV1(tx, dst, pkts[:n])
		}
		if err != nil {
			return err
		}
		pkts = pkts[n:]
	}
	return nil
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
	go w.receive(h)
	return nil
}

// close implements wire. It must not be called by the handler.
func (w *netWire) close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		<-w.done
		return nil
	}
	w.countOverruns()
	w.closed = true
	started := w.started
	w.mu.Unlock()
	if started {
		// The reception looks at w.wake after each batch.
		if _, err := unix.Write(w.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
			return fmt.Errorf("softroce: wake the reception: %w", err)
		}
		<-w.done
	} else {
		close(w.done)
	}
	w.release()
	return nil
}

// release frees all that openWire got. Nobody else uses it any more.
func (w *netWire) release() {
	if w.watch != nil {
		w.watch.Close()
	}
	if w.v1 != nil {
		w.v1.close()
	}
	if w.v2 != nil {
		w.v2.close()
	}
	if w.wake >= 0 {
		unix.Close(w.wake)
	}
}

// pollEvery is after how many batches from one socket the others are looked
// at.
const pollEvery = 16

// receive hands packets to h until close.
func (w *netWire) receive(h handler) {
	defer close(w.done)
	rx := newRxBatch()
	if w.v2 != nil {
		rx.udp = newUDPRx()
	}
	fds := []unix.PollFd{
		{Fd: int32(w.wake), Events: unix.POLLIN},
		{Fd: int32(w.v1.fd), Events: unix.POLLIN},
	}
	if w.v2 != nil {
		for _, fd := range w.v2.fd { // poll ignores an entry of -1
			fds = append(fds, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
	}
	busy := 0
	for {
		if n := w.v1.take(rx, w.self.Load(), &w.stats); n > 0 {
			if len(rx.in) > 0 {
				h(rx.in)
			}
			w.v1.free(n)
			rx.reset()
			if busy++; busy < pollEvery {
				continue
			}
		}
		timeout := -1
		if busy > 0 {
			timeout = 0
		}
		busy = 0
		// The packet socket's ring is looked at above after each poll.
		if n, err := unix.Poll(fds, timeout); n <= 0 || err != nil {
			continue // EINTR, or nothing: no other error can be
		}
		if fds[0].Revents != 0 {
			return
		}
		for i := range fds[1:] {
			p := &fds[1+i]
			if p.Revents&(unix.POLLERR|unix.POLLHUP) != 0 {
				// Netdev down, or an ICMP error: reading it clears it.
				_, _ = unix.GetsockoptInt(int(p.Fd), unix.SOL_SOCKET, unix.SO_ERROR)
			}
			if i > 0 && p.Revents&unix.POLLIN != 0 {
				w.v2.take(i-1, rx, w.self.Load(), &w.stats, h)
			}
		}
	}
}

// rxBatch is the reused memory of one batch of received packets.
type rxBatch struct {
	chk header.Checker
	udp *udpRx // nil without version 2
	in  []inbound
}

func newRxBatch() *rxBatch { return &rxBatch{in: make([]inbound, 0, ioBatch)} }

func (b *rxBatch) reset() { b.in = b.in[:0] }
