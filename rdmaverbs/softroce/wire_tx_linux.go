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

// iovsPerPacket is the number of vectors of a packet: headers, two payload
// pieces, pad with ICRC.
const iovsPerPacket = 4

// headLen is the length in bytes of the longest headers, those of sendLL.
const headLen = vnetHdrLen + header.EthernetLen + header.IPv6Len + header.UDPLen + header.MaxTransportLen

// tailLen is the largest length in bytes of pad and ICRC.
const tailLen = 4 + header.ICRCLen

// defaultHopLimit is for paths without a hop limit.
const defaultHopLimit = 64

// sendWait is how long a send waits for room in the send buffer of the socket.
// After that it drops the rest of its packets, and the transport sends them
// again.
const sendWait = 2 * time.Millisecond

// transportLen returns the bytes of p from the BTH to the end of pad.
func transportLen(p *packet) int {
	return len(p.hdr) + len(p.payload[0]) + len(p.payload[1]) + int(header.BTH(p.hdr).PadCount())
}

// appendTail appends pad and ICRC to b. crc is the ICRC of everything before
// the pad.
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
	last [ioBatch][tailLen]byte // end of a message: pad and ICRC
	pre  header.Prefix

	// Version 2.
	v2      v2Target
	name4   unix.RawSockaddrInet4
	name6   unix.RawSockaddrInet6
	control [ioBatch][udpControl]byte
	segs    [ioBatch]uint16 // packets in each message

	dropped uint64 // packets that the last flush could not send
}

// errNoGSO means that the kernel refused a message of several segments.
var errNoGSO = errors.New("softroce: netdev does not segment UDP messages")

var txPool = sync.Pool{New: func() any { return new(txBatch) }}

// setIov makes vector i point to b.
func (tx *txBatch) setIov(i int, b []byte) {
	tx.iovs[i].Base = unsafe.SliceData(b)
	tx.iovs[i].SetLen(len(b))
}

// fill completes message i. head and tail are parts of the batch; the payload
// is not copied.
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

// clear removes the pointers to the payloads of n messages. Payload may be
// memory outside the Go heap that its owner unmaps later. If the heap grows to
// that address, the garbage collector must not find such a pointer.
func (tx *txBatch) clear(n int) {
	clear(tx.iovs[:n*iovsPerPacket])
	clear(tx.msgs[:n])
}

// flush sends the first n messages on fd. It counts and skips packets that the
// netdev does not accept. An error means that no further packet can be sent.
func (tx *txBatch) flush(fd, n int, c *wireCounters) error {
	_, err := tx.push(fd, n, c, func(i int) (int, syscall.Errno) {
		// This call never waits, so the scheduler does not need to know of it.
		sent, _, errno := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(fd),
			uintptr(unsafe.Pointer(&tx.msgs[i])), uintptr(n-i), unix.MSG_DONTWAIT, 0, 0)
		if errno != 0 {
			return 0, errno
		}
		return int(sent), 0
	})
	return err
}

// push sends n messages with the function send, which sends messages from i on
// and returns how many it sent and the error of the next. push polls fd when
// there is no room. It returns n, or the number of messages that are done when
// send returns errRingFull.
func (tx *txBatch) push(fd, n int, c *wireCounters, send func(i int) (int, syscall.Errno)) (done int, err error) {
	tx.dropped = 0
	defer func() { c.txLost.Add(tx.dropped) }()
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
				tx.dropped += tx.packets(i, n)
				return n, nil
			}
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 1)
		case unix.ENXIO, unix.ENODEV:
			tx.dropped += tx.packets(i, n)
			return n, errNetdevGone
		case unix.ENETDOWN:
			tx.dropped += tx.packets(i, n)
			return n, nil
		default:
			// ENOBUFS: the queue of the netdev dropped this packet. EMSGSIZE:
			// it exceeds the present MTU. EPERM, EHOSTUNREACH and others:
			// firewall or routing. The next packet may pass. EIO and EINVAL:
			// see errNoGSO.
			if tx.segs[i] > 1 && (errno == unix.EIO || errno == unix.EINVAL) {
				return i, errNoGSO
			}
			tx.dropped += uint64(tx.segs[i])
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
