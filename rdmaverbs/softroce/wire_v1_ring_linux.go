// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"smcr/rdmaverbs/softroce/header"

	"golang.org/x/sys/unix"
)

// txRing sends frames of RoCE version 1 from memory that it shares with the kernel
// (PACKET_TX_RING, TPACKET_V2). The kernel sends a frame from the page in which
// txRing wrote it. For sendmmsg it allocates and clears pages first, which costs
// more than the copy.
//
//	status of a slot       | set by | when
//	-----------------------+--------+-----------------------------------------
//	TP_STATUS_AVAILABLE    | kernel | the frame was sent
//	TP_STATUS_SEND_REQUEST | txRing | the frame is complete
//	TP_STATUS_SENDING      | kernel | the frame is being sent
//	TP_STATUS_WRONG_FORMAT | kernel | it does not fit the netdev
//
// Some drivers set TP_STATUS_AVAILABLE while the frame still waits in a queue
// of the driver. So a slot is used again only after txSlots-1 others, which is
// twice the number of packets that a queue pair has outstanding. If a frame is
// overwritten nevertheless, its ICRC is wrong, and the transport sends it
// again.
//
// The ring is made when the first large batch is sent. A socket with a ring can
// only send from the ring, so the ring has a separate socket.
type txRing struct {
	fd int

	mu   sync.Mutex
	ring []byte
	head int  // slot of the next frame
	off  bool // the ring cannot be made
}

const (
	txSlots  = 2 * DefaultWindowPackets
	txBlocks = (txSlots + perBlock - 1) / perBlock

	// Offsets in a slot of the send ring.
	slotLen   = 4 // length of the frame
	slotFrame = slotLL

	// txRingLeast is the smallest payload, in bytes, of a batch that is sent
	// with the ring.
	txRingLeast = 8 << 10

	// errRingFull means that the ring has no room for the batch now.
	errRingFull = unix.EXFULL
)

// newTxRing opens the socket of a ring in the calling thread's network namespace.
func newTxRing(index int) (*txRing, error) {
	fd, err := packetSender(index)
	if err != nil {
		return nil, err
	}
	return &txRing{fd: fd}, nil
}

// open makes the ring. mu is held.
func (r *txRing) open() (err error) {
	if err := unix.SetsockoptInt(r.fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V2); err != nil {
		return fmt.Errorf("softroce: select TPACKET_V2: %w", err)
	}
	req := unix.TpacketReq{Block_size: ringBlock, Block_nr: txBlocks, Frame_size: ringSlot, Frame_nr: txBlocks * perBlock}
	if err := unix.SetsockoptTpacketReq(r.fd, unix.SOL_PACKET, unix.PACKET_TX_RING, &req); err != nil {
		return fmt.Errorf("softroce: allocate send ring: %w", err)
	}
	if r.ring, err = unix.Mmap(r.fd, 0, ringBlock*txBlocks, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return fmt.Errorf("softroce: map send ring: %w", err)
	}
	return nil
}

// close frees the ring. Nobody may be sending.
func (r *txRing) close() {
	if r.ring != nil {
		_ = unix.Munmap(r.ring)
		r.ring = nil
	}
	unix.Close(r.fd)
}

// slot returns the slot at i places after the next one. No slot is in two
// blocks.
func (r *txRing) slot(i int) []byte {
	i = (r.head + i) % (txBlocks * perBlock)
	at := i/perBlock*ringBlock + i%perBlock*ringSlot
	return r.ring[at : at+ringSlot : at+ringSlot]
}

// ready reports whether the next n slots can be used. mu is held.
func (r *txRing) ready(n int) bool {
	if r.ring == nil && !r.off {
		r.off = r.open() != nil
	}
	if r.off {
		return false
	}
	for i := range n {
		if atomic.LoadUint32(status(r.slot(i))) != unix.TP_STATUS_AVAILABLE {
			return false
		}
	}
	return true
}

// send makes the kernel send pkts. It returns how many it accepted and the
// error of the next one. same has the headers of the frames, without the
// length. pre computes the start of their ICRCs.
func (r *txRing) send(same []byte, pre *header.Prefix, pkts []packet) (sent int, errno syscall.Errno) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.ready(len(pkts)) {
		return 0, errRingFull
	}
	for i := range pkts {
		fillSlot(r.slot(i), same, pre, &pkts[i])
	}
	// It never waits: the scheduler need not know of it.
	_, _, errno = unix.RawSyscall6(unix.SYS_SENDTO, uintptr(r.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	sent = len(pkts)
	for sent > 0 && waits(r.slot(sent-1)) {
		// The kernel would continue with the first frame that it did not
		// accept.
		sent--
		atomic.StoreUint32(status(r.slot(sent)), unix.TP_STATUS_AVAILABLE)
	}
	r.head = (r.head + sent) % (txBlocks * perBlock)
	return sent, errno
}

// waits reports whether the kernel has not accepted the frame in a slot.
func waits(slot []byte) bool {
	s := atomic.LoadUint32(status(slot))
	return s == unix.TP_STATUS_SEND_REQUEST || s == unix.TP_STATUS_WRONG_FORMAT
}

// fillSlot writes the frame of p into a slot and sets TP_STATUS_SEND_REQUEST.
func fillSlot(slot, same []byte, pre *header.Prefix, p *packet) {
	n := transportLen(p) + header.ICRCLen
	b := append(append(slot[slotFrame:slotFrame], same...), p.hdr...)
	header.GRH(b[header.EthernetLen:]).SetPayloadLen(uint16(n))
	at := len(b)
	b = append(append(b, p.payload[0]...), p.payload[1]...)
	b = p.appendTail(b, pre.Start(n).AddBTH(p.hdr).Add(b[at:]))
	binary.NativeEndian.PutUint32(slot[slotLen:], uint32(len(b)))
	atomic.StoreUint32(status(slot), unix.TP_STATUS_SEND_REQUEST)
}

// worthRing reports whether pkts are large enough for the ring.
func worthRing(pkts []packet) bool {
	n := 0
	for i := range pkts {
		n += len(pkts[i].payload[0]) + len(pkts[i].payload[1])
		if n >= txRingLeast {
			return true
		}
	}
	return false
}
