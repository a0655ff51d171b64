// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"bytes"
	"fmt"

	"smcr/userstack/wire"
)

// receiver is the stream from the peer: the local RMB element with its cursors.
// Positions count the bytes of the stream:
//
//	told <= read <= written,  written - told <= element size
//
// The consumer cursor goes out with each message. When it is worth a message of its
// own (RFC 7609, section 4.5.1):
//
//	last message of the peer | bytes read since it was told | update
//	-------------------------+------------------------------+-------
//	any                      | none                         | no
//	flag R                   | any                          | yes
//	flag B                   | any                          | yes
//	urgent data              | just read past it            | yes
//	otherwise                | >= 10% of the element, and   |
//	                         | the window that the peer     |
//	                         | knows of is less than half   | yes
//	otherwise                |                              | no
type receiver struct {
	mem     []byte // the element
	elem    ring
	written uint64 // written by the peer
	read    uint64 // read by the program
	told    uint64 // consumer cursor that the peer was told
	seq     uint16 // last CDC message processed (SR of RFC 7609, section 4.6.1)
	flags   wire.ProducerFlags
	woken   bool // WakeRead was sent and RecvData not called since
	kept    bool // the connection was reset, and the rest of the data can still be read
	urgent  urgentInput
}

// initialize divides a new element. It is the only place that writes to an element: the
// peer does not know the element yet (RFC 7609, section 4.4.1).
func (r *receiver) initialize(mem []byte, eye EyeCatcher) {
	r.mem = mem
	r.layOut(eye == EyeUsed)
	if eye != EyeNone {
		copy(r.mem, eyeCatcher[:])
	}
}

// layOut divides the element; eye says whether it begins with the eye catcher.
func (r *receiver) layOut(eye bool) { r.elem = newRing(len(r.mem), eye) }

// intact checks for an overlay of the element (RFC 7609, section 4.4.1).
func (r *receiver) intact() bool {
	return r.elem.start == 0 || bytes.Equal(r.mem[:eyeCatcherLen], eyeCatcher[:])
}

// unread returns how many bytes can be read in one piece.
func (r *receiver) unread() int { return r.urgent.unread(r.read, r.written) }

// data returns these bytes, in two parts if they go round the end of the element. It
// returns nothing if the element was overwritten.
func (r *receiver) data() (a, b []byte) {
	if !r.intact() {
		return nil, nil
	}
	return span(r.mem[r.elem.start:], r.read, r.unread())
}

// consume takes n bytes out of the stream.
func (r *receiver) consume(n int) {
	if n > r.unread() {
		panic("conn: more consumed than there was data")
	}
	r.read += uint64(n)
	r.skipUrgent()
}

// skipUrgent takes the urgent byte out of the stream once the reader has got to it.
func (r *receiver) skipUrgent() {
	if r.urgent.skips(r.read) {
		r.read++
	}
}

// wantUpdate reports whether the consumer cursor is worth a message of its own.
func (r *receiver) wantUpdate() bool {
	gain := r.read - r.told
	if gain == 0 {
		return false
	}
	if r.flags&(wire.ProdCursorRequest|wire.ProdWriterBlocked) != 0 {
		return true
	}
	if r.urgent.mark > r.told && r.read >= r.urgent.mark {
		return true
	}
	size := uint64(r.elem.size)
	seen := size - (r.written - r.told)
	return seen*2 < size && gain*10 >= size
}

// ahead returns how far the producer cursor of a message is ahead. A cursor beyond
// the free part of the element, or one that goes back, is ErrProtocol; but a peer
// that has moved the connection may announce again what it does not know to have
// arrived.
func (r *receiver) ahead(c wire.Cursor, moved bool) (uint64, error) {
	n, ok := r.elem.ahead(c, r.written)
	if !ok {
		return 0, fmt.Errorf("%w: producer cursor %d outside of the RMB element", ErrProtocol, c.Count)
	}
	size := uint64(r.elem.size)
	if n > size-(r.written-r.read) {
		back := size<<16 - n
		if !moved || back > size {
			return 0, fmt.Errorf("%w: producer cursor %d:%d overruns the RMB element", ErrProtocol, c.Wrap, c.Count)
		}
		n = 0
	}
	return n, nil
}
