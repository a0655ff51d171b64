// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"errors"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"smcr/rdmaverbs/softroce/header"

	"golang.org/x/sys/unix"
)

// mmsghdr is struct mmsghdr of sendmmsg(2) and recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

// iovsPerPacket: headers, two payload pieces, pad with ICRC.
const iovsPerPacket = 4

// headLen holds the headers of the longest packet: those of sendLL.
const headLen = vnetHdrLen + header.EthernetLen + header.IPv6Len + header.UDPLen + header.MaxTransportLen

// tailLen holds what ends a packet: pad and ICRC.
const tailLen = 4 + header.ICRCLen

// defaultHopLimit is for paths that do not say.
const defaultHopLimit = 64

// sendWait is how long a send waits for room in the socket's send buffer
// before the rest of its packets are lost. The transport repeats them.
const sendWait = 2 * time.Millisecond

// transportLen returns the bytes of p from the BTH to the end of pad.
func transportLen(p *packet) int {
	return len(p.hdr) + len(p.payload[0]) + len(p.payload[1]) + int(header.BTH(p.hdr).PadCount())
}

// appendTail appends pad and ICRC. crc is that of all before the pad.
func (p *packet) appendTail(b []byte, crc header.ICRC) []byte {
	var zero [3]byte
	at := len(b)
	b = append(b, zero[:header.BTH(p.hdr).PadCount()]...)
	return crc.Add(b[at:]).Append(b)
}

// txBatch is the reused memory of one sendmmsg call.
type txBatch struct {
	msgs [ioBatch]mmsghdr
	iovs [ioBatch * iovsPerPacket]unix.Iovec
	head [ioBatch][headLen]byte
	last [ioBatch][tailLen]byte // what ends a message
	pre  header.Prefix

	// Version 2.
	v2      v2Target
	name4   unix.RawSockaddrInet4
	name6   unix.RawSockaddrInet6
	control [ioBatch][udpControl]byte
	segs    [ioBatch]uint16 // packets in each message

	lost uint64 // packets that the last flush could not send
}

// errNoGSO means that a message of several segments was refused.
var errNoGSO = errors.New("softroce: netdev does not segment UDP messages")

var txPool = sync.Pool{New: func() any { return new(txBatch) }}

// setIov points vector i at b.
func (tx *txBatch) setIov(i int, b []byte) {
	tx.iovs[i].Base = unsafe.SliceData(b)
	tx.iovs[i].SetLen(len(b))
}

// fill completes message i: head and tail are parts of the batch, the
// payload stays where it is.
func (tx *txBatch) fill(i int, head []byte, p *packet, tail []byte) {
	v := i * iovsPerPacket
	n := v
	tx.setIov(n, head)
	n++
	for _, b := range p.payload {
		if len(b) > 0 {
			tx.setIov(n, b)
			n++
		}
	}
	tx.setIov(n, tail)
	n++
	m := &tx.msgs[i]
	m.hdr.Iov = &tx.iovs[v]
	m.hdr.SetIovlen(n - v)
	tx.segs[i] = 1
}

// clear forgets the payloads of n messages. They may be memory outside the
// Go heap that its owner unmaps: a pointer there must not be left behind for
// the garbage collector to find, once the heap has grown to that address.
func (tx *txBatch) clear(n int) {
	clear(tx.iovs[:n*iovsPerPacket])
	clear(tx.msgs[:n])
}

// flush sends the first n messages on fd. Packets that the netdev does not
// take are counted and left; the error means that no other packet will pass
// either.
func (tx *txBatch) flush(fd, n int, c *wireCounters) error {
	_, err := tx.push(fd, n, c, func(i int) (int, syscall.Errno) {
		// It never waits: the scheduler need not know of it.
		sent, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd),
			uintptr(unsafe.Pointer(&tx.msgs[i])), uintptr(n-i), unix.MSG_DONTWAIT, 0, 0)
		if errno != 0 {
			return 0, errno
		}
		return int(sent), 0
	})
	return err
}

// push is flush with another way to send: send takes the messages from i on, as far
// as it can, and tells how many that were and why they were no more. fd is what
// to poll for room. It returns n, or how many messages are done when send found its
// ring full.
func (tx *txBatch) push(fd, n int, c *wireCounters, send func(i int) (int, syscall.Errno)) (done int, err error) {
	tx.lost = 0
	defer func() { c.txLost.Add(tx.lost) }()
	var deadline time.Time
	for i := 0; i < n; {
		sent, errno := send(i)
		if sent > 0 {
			c.txPackets.Add(tx.packets(i, i+sent))
			i += sent
			continue
		}
		switch errno {
		case unix.EINTR:
		case errRingFull:
			return i, nil
		case 0, unix.EAGAIN:
			now := time.Now()
			if deadline.IsZero() {
				deadline = now.Add(sendWait)
			}
			if !now.Before(deadline) {
				tx.lost += tx.packets(i, n)
				return n, nil
			}
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 1)
		case unix.ENXIO, unix.ENODEV:
			tx.lost += tx.packets(i, n)
			return n, errNetdevGone
		case unix.ENETDOWN:
			tx.lost += tx.packets(i, n)
			return n, nil
		default:
			// ENOBUFS: the queue of the netdev dropped this packet.
			// EMSGSIZE: it exceeds the MTU of now. EPERM, EHOSTUNREACH and
			// others: firewall or routing. The next one may pass. EIO and
			// EINVAL: see errNoGSO.
			if tx.segs[i] > 1 && (errno == unix.EIO || errno == unix.EINVAL) {
				return i, errNoGSO
			}
			tx.lost += uint64(tx.segs[i])
			i++
		}
	}
	return n, nil
}

// packets returns how many packets messages i to end-1 carry.
func (tx *txBatch) packets(i, end int) (n uint64) {
	for ; i < end; i++ {
		n += uint64(tx.segs[i])
	}
	return n
}
