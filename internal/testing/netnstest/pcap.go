// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// A pcap reads a classic pcap file with Ethernet frames.
type pcap struct {
	r     *bufio.Reader
	order binary.ByteOrder
	unit  time.Duration // unit of the fraction in a time stamp
	buf   []byte
}

// A record is a frame of a capture.
type record struct {
	at     time.Time
	kept   []byte // the captured bytes; valid until the next record is read
	length int    // bytes of the whole frame
}

func newPcap(r io.Reader) (*pcap, error) {
	p := &pcap{r: bufio.NewReaderSize(r, 1<<20), unit: time.Microsecond}
	var head [24]byte
	if _, err := io.ReadFull(p.r, head[:]); err != nil {
		return nil, fmt.Errorf("netnstest: read capture: %w", err)
	}
	const micro, nano = 0xa1b2c3d4, 0xa1b23c4d
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		switch order.Uint32(head[:]) {
		case nano:
			p.unit = time.Nanosecond
			fallthrough
		case micro:
			p.order = order
		}
	}
	if p.order == nil {
		return nil, errors.New("netnstest: not a classic pcap file")
	}
	if link := p.order.Uint32(head[20:]); link != 1 {
		return nil, fmt.Errorf("netnstest: capture of link type %d, want Ethernet (1)", link)
	}
	return p, nil
}

// next returns the next record, or io.EOF at the end of the file.
func (p *pcap) next() (record, error) {
	var head [16]byte
	if _, err := io.ReadFull(p.r, head[:]); err == io.EOF {
		return record{}, io.EOF
	} else if err != nil {
		return record{}, fmt.Errorf("netnstest: read capture: %w", err)
	}
	kept, length := p.order.Uint32(head[8:]), p.order.Uint32(head[12:])
	if kept > 1<<20 || length < kept {
		return record{}, fmt.Errorf("netnstest: capture record of %d bytes for a frame of %d", kept, length)
	}
	if cap(p.buf) < int(kept) {
		p.buf = make([]byte, kept)
	}
	p.buf = p.buf[:kept]
	if _, err := io.ReadFull(p.r, p.buf); err != nil {
		return record{}, fmt.Errorf("netnstest: read capture: %w", err)
	}
	at := time.Unix(int64(p.order.Uint32(head[:])), int64(p.order.Uint32(head[4:]))*int64(p.unit))
	return record{at, p.buf, int(length)}, nil
}
