// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"fmt"
	"time"
)

// Send memory. A connection takes it in chunks when it has something to send, and
// gives each back once the peer's queue pair has acknowledged all of it: an idle
// connection holds none. The chunks of a connection follow each other without gaps,
// so the bytes from fin to prep, and no others, lie in the list from head to tail.
//
//	head                      tail                 spare
//	[....fin#####sent######] [########prep________] [_______________]
//	     to be confirmed       to be sent   \____ lent to the producer
//
// What is lent to the producer ([Conn.SendSpace]) stays until it has produced or
// says that it does not ([Conn.DropSpace]). What a chunk holds before it is written
// to may be of another connection. It stays here: only what was produced is sent.

// Chunk is a piece of send memory that [Env.NewChunk] gives. A connection has all
// of it until [Env.FreeChunk].
type Chunk struct {
	Mem  []byte
	Data any // free for the driver

	from uint64 // position of the first byte in the stream
	next *Chunk
}

func (k *Chunk) end() uint64 { return k.from + uint64(len(k.Mem)) }

const (
	// chunkSize is the least size of a chunk, as far as the send buffer is not
	// smaller. Small messages touch only its first page, and large ones should not
	// be cut into many RDMA WRITEs.
	chunkSize = 64 << 10
	// maxChunks is how many chunks a full send buffer takes. Data in one piece is
	// in one more at the most, if it begins within one.
	maxChunks = 8
	// maxPieces is how many RDMA WRITEs one message takes at the most. A piece ends
	// where a chunk does and, once, where the peer's element does; one is an urgent
	// byte at a second place.
	maxPieces = maxChunks + 3
)

// chunkFor returns the size of the chunks of a send buffer.
func chunkFor(sendBuf, least int) int {
	n := max(least, (sendBuf+maxChunks-1)/maxChunks)
	if n > 4096 {
		n = (n + 4095) &^ 4095
	}
	return min(n, sendBuf)
}

// SendSpace lends memory for what is to be sent to one producer: a, and then b.
// They are least bytes or more, and about most if that takes no second new chunk.
// They are less only as far as the send buffer has no room, and empty when it is full,
// which makes ActWakeWrite follow, and when [Conn.WriteErr] is not nil. An error
// says that there is no memory.
//
// It is lent until the next call of Produced, ProducedUrgent, DropSpace or
// SendSpace.
func (c *Conn) SendSpace(least, most int) (a, b []byte, err error) {
	if c.WriteErr() != nil || c.freed {
		c.DropSpace()
		return nil, nil, nil
	}
	free := c.ssize - int(c.prep-c.fin)
	if free == 0 {
		c.full = true
		return nil, nil, nil
	}
	least = min(least, free)
	most = min(max(least, most), free)
	if most <= 0 {
		return nil, nil, nil
	}
	if c.tail != nil {
		a = c.tail.Mem[c.prep-c.tail.from:]
		a = a[:min(len(a), free)]
	}
	if len(a) < most {
		if b, err = c.fetch(least - len(a)); err != nil && len(a) < least {
			c.DropSpace()
			return nil, nil, err
		}
		b = b[:min(len(b), free-len(a))]
	}
	if len(a) == 0 {
		a, b = b, nil
	}
	c.lent = len(a) + len(b)
	return a, b, nil
}

// fetch has a spare chunk of n bytes or more.
func (c *Conn) fetch(n int) ([]byte, error) {
	if c.spare != nil && len(c.spare.Mem) < n {
		c.dropSpare()
	}
	if c.spare == nil {
		size := c.schunk
		if n > size {
			size = c.ssize
		}
		k, err := c.g.env.NewChunk(size)
		if err != nil {
			return nil, fmt.Errorf("linkgroup: allocate %d bytes of send memory: %w", size, err)
		}
		k.from, k.next = c.prep, nil
		if c.tail != nil {
			k.from = c.tail.end()
		}
		c.spare = k
	}
	return c.spare.Mem, nil
}

func (c *Conn) dropSpare() {
	if k := c.spare; k != nil {
		c.spare = nil
		c.g.env.FreeChunk(k)
	}
}

// DropSpace says that nothing was placed into what [Conn.SendSpace] returned, and
// that nobody will.
func (c *Conn) DropSpace() {
	c.lent = 0
	c.dropSpare()
	c.freeConfirmed()
}

// Produced says that n bytes were placed into what [Conn.SendSpace] returned, of
// which the rest is no longer lent.
func (c *Conn) Produced(now time.Time, n int) { c.produce(now, n, false) }

func (c *Conn) produce(now time.Time, n int, urgent bool) {
	more := c.place(n)
	more, c.placed = more || c.placed, false
	if !more || c.WriteErr() != nil || c.freed {
		return
	}
	c.g.now = now
	if urgent {
		c.markUrgent()
	}
	if int(c.prep-c.fin) == c.ssize {
		c.full = true
	}
	c.transmit()
	c.armUrgent()
	c.armCork()
}

// Placed is Produced for one who has more: the n bytes may wait for those. Produced
// follows, with 0 if there are none.
func (c *Conn) Placed(n int) { c.placed = c.place(n) || c.placed }

// place takes n bytes more for sending, or says that it does not.
func (c *Conn) place(n int) bool {
	if n <= 0 || c.WriteErr() != nil || c.freed {
		c.DropSpace()
		return false
	}
	if n > c.lent {
		panic("linkgroup: more produced than there was space")
	}
	c.lent = 0
	c.prep += uint64(n)
	if c.tail == nil || c.prep > c.tail.end() {
		if c.tail == nil {
			c.head = c.spare
		} else {
			c.tail.next = c.spare
		}
		c.tail, c.spare = c.spare, nil
	}
	c.dropSpare()
	return true
}

// freeConfirmed gives back the chunks of which the peer's queue pair has all. What
// the producer has stays.
func (c *Conn) freeConfirmed() {
	for k := c.head; k != nil && (k.end() <= c.fin || c.fin == c.prep && c.lent == 0); k = c.head {
		if c.head = k.next; c.head == nil {
			c.tail = nil
		}
		k.next = nil
		c.g.env.FreeChunk(k)
	}
}

// freeChunks gives back all send memory of a connection that has ended.
func (c *Conn) freeChunks() {
	c.fin, c.lent = c.prep, 0
	c.dropSpare()
	c.freeConfirmed()
}

// chunkAt returns the chunk in which the byte at pos is.
func (c *Conn) chunkAt(pos uint64) *Chunk {
	k := c.head
	for k.end() <= pos {
		k = k.next
	}
	return k
}

// AwaitSpace makes ActWakeWrite follow when a quarter of the send buffer is free, or
// all of it, for a producer to whom what [Conn.SendSpace] returned is too little.
func (c *Conn) AwaitSpace() { c.full = true }

// SendSize returns the size of the send buffer in bytes: how much a connection
// takes that is not confirmed.
func (c *Conn) SendSize() int { return c.ssize }

// SendChunk returns the usual size of a chunk in bytes.
func (c *Conn) SendChunk() int { return c.schunk }
