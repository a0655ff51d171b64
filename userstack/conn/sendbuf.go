// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"fmt"
)

// Send memory. A connection takes it in chunks when it has something to send, and
// gives each back once the peer's queue pair has acknowledged all of it: an idle
// connection has none. The chunks of a connection follow each other without gaps,
// so the bytes from delivered to produced, and no others, are in the list from head
// to tail.
//
//	head                             tail                  spare
//	[...delivered####written######] [#####produced________] [_______________]
//	     to be acknowledged              to be written \____ reserved
//
// Reserved space ([Conn.SendSpace]) belongs to the producer until it reports what it
// has placed there, or that it placed nothing ([Conn.DropSpace]). Before the producer
// writes to it, a chunk may have bytes of another connection. They stay here: only
// what was produced is sent.

// Chunk is a piece of send memory that [Memory] gives. One connection has all of it
// until [Memory.FreeChunk].
type Chunk struct {
	Mem  []byte
	Data any // free for the driver

	from uint64 // position of the first byte in the stream
	next *Chunk
}

func (k *Chunk) end() uint64 { return k.from + uint64(len(k.Mem)) }

const (
	// DefaultChunk is the usual least size of a chunk in bytes. Small messages
	// touch only its first page, and large ones should not be cut into many RDMA
	// WRITEs.
	DefaultChunk = 64 << 10
	// maxChunks is how many chunks a full send buffer takes. Data in one piece is
	// in one more at the most, if it begins within one.
	maxChunks = 8
)

// chunkFor returns the size of the chunks of a send buffer. Both sizes are in bytes.
func chunkFor(sendBuf, least int) int {
	n := max(least, (sendBuf+maxChunks-1)/maxChunks)
	if n > 4096 {
		n = (n + 4095) &^ 4095
	}
	return min(n, sendBuf)
}

// sendBuffer is the send memory of a connection. Positions count the bytes of the
// stream from 0.
type sendBuffer struct {
	size  int    // how many bytes may wait to be delivered
	chunk int    // size of a chunk in bytes
	head  *Chunk // first chunk in use
	tail  *Chunk // last chunk in use
	spare *Chunk // the chunk behind tail, reserved and empty

	reserved  int    // bytes that the producer may fill
	produced  uint64 // position up to which the producer has placed data
	delivered uint64 // position up to which the peer's queue pair has acknowledged it
}

// free returns how many bytes the send buffer has room for.
func (b *sendBuffer) free() int { return b.size - int(b.produced-b.delivered) }

// reserve returns space for least bytes or more, and about most if that takes no
// second new chunk. It is less only as far as the buffer has no room. The error is
// that of [Memory.NewChunk]; nothing is reserved then.
func (b *sendBuffer) reserve(mem Memory, least, most int) (x, y []byte, err error) {
	free := b.free()
	least = min(least, free)
	most = min(max(least, most), free)
	if most <= 0 {
		return nil, nil, nil
	}
	if b.tail != nil {
		x = b.tail.Mem[b.produced-b.tail.from:]
		x = x[:min(len(x), free)]
	}
	if len(x) < most {
		if y, err = b.takeSpare(mem, least-len(x)); err != nil && len(x) < least {
			b.drop(mem)
			return nil, nil, err
		}
		y = y[:min(len(y), free-len(x))]
	}
	if len(x) == 0 {
		x, y = y, nil
	}
	b.reserved = len(x) + len(y)
	return x, y, nil
}

// takeSpare returns the memory of a spare chunk of n bytes or more.
func (b *sendBuffer) takeSpare(mem Memory, n int) ([]byte, error) {
	if b.spare != nil && len(b.spare.Mem) < n {
		b.dropSpare(mem)
	}
	if b.spare == nil {
		size := b.chunk
		if n > size {
			size = b.size
		}
		k, err := mem.NewChunk(size)
		if err != nil {
			return nil, fmt.Errorf("conn: allocate %d bytes of send memory: %w", size, err)
		}
		k.from, k.next = b.produced, nil
		if b.tail != nil {
			k.from = b.tail.end()
		}
		b.spare = k
	}
	return b.spare.Mem, nil
}

func (b *sendBuffer) dropSpare(mem Memory) {
	if k := b.spare; k != nil {
		b.spare = nil
		mem.FreeChunk(k)
	}
}

// drop takes the reserved space back.
func (b *sendBuffer) drop(mem Memory) {
	b.reserved = 0
	b.dropSpare(mem)
	b.freeDelivered(mem)
}

// place takes the first n bytes of the reserved space into the stream, and the rest
// back.
func (b *sendBuffer) place(mem Memory, n int) {
	if n > b.reserved {
		panic("conn: more produced than there was space")
	}
	b.reserved = 0
	b.produced += uint64(n)
	if b.tail == nil || b.produced > b.tail.end() {
		if b.tail == nil {
			b.head = b.spare
		} else {
			b.tail.next = b.spare
		}
		b.tail, b.spare = b.spare, nil
	}
	b.dropSpare(mem)
}

// freeDelivered gives back the chunks of which all bytes are delivered. The chunk
// that the producer fills stays.
func (b *sendBuffer) freeDelivered(mem Memory) {
	for k := b.head; k != nil && (k.end() <= b.delivered || b.delivered == b.produced && b.reserved == 0); k = b.head {
		if b.head = k.next; b.head == nil {
			b.tail = nil
		}
		k.next = nil
		mem.FreeChunk(k)
	}
}

// freeAll gives back all chunks of a connection that has ended.
func (b *sendBuffer) freeAll(mem Memory) {
	b.delivered, b.reserved = b.produced, 0
	b.dropSpare(mem)
	b.freeDelivered(mem)
}

// chunkAt returns the chunk that has the byte at pos.
func (b *sendBuffer) chunkAt(pos uint64) *Chunk {
	k := b.head
	for k.end() <= pos {
		k = k.next
	}
	return k
}
