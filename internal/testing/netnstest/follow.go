// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"smcr/userstack/wire"
)

// A Packet is a frame of a capture that is running.
type Packet struct {
	// At is when the host sent or received the frame.
	At time.Time
	// Source is the Ethernet address of the sender.
	Source net.HardwareAddr
	// Length is the number of bytes of the whole frame, without FCS.
	Length int
	// RoCE and TCP tell what the frame carries. Both are false for anything else.
	RoCE, TCP bool
	// SYN and ACK are flags of a TCP segment. SMC reports whether it has the SMC-R option
	// (RFC 7609, section 3.1).
	SYN, ACK, SMC bool
	// Opcode is that of the base transport header of RoCE (InfiniBand, section 9.2).
	Opcode byte
	// Payload has the captured bytes after the TCP header, or after the base transport
	// header of RoCE. It is valid only during the call.
	Payload []byte
}

const (
	globalRouteHeader   = 40 // of RoCE version 1, after the Ethernet header
	baseTransportHeader = 12
	udpHeader           = 8
)

// Follow calls f for each frame of a capture, while the capture runs, until ctx is
// done. tcpdump writes frames in groups, so the last ones may be missing for some
// time.
func (c *Capture) Follow(ctx context.Context, f func(Packet)) error {
	file, err := os.Open(c.File)
	if err != nil {
		return err
	}
	defer file.Close()
	p, err := newPcap(growing{ctx, file})
	for err == nil {
		var rec record
		if rec, err = p.next(); err == nil {
			f(parsePacket(rec))
		}
	}
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil // the end may be in the middle of a record
	}
	return err
}

// growing reads a file to which another process appends, until ctx is done.
type growing struct {
	ctx  context.Context
	file *os.File
}

func (g growing) Read(b []byte) (int, error) {
	for {
		n, err := g.file.Read(b)
		if n > 0 || err != io.EOF {
			return n, err
		}
		select {
		case <-g.ctx.Done():
			return 0, io.EOF
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// parsePacket classifies a frame.
func parsePacket(rec record) Packet {
	b := rec.kept
	p := Packet{At: rec.at, Length: rec.length}
	if len(b) < etherLen {
		return p
	}
	p.Source = net.HardwareAddr(b[6:12])
	var roce Tally
	proto, _, _, off, ok := parseNetwork(b, &roce, rec.length)
	switch {
	case off < 0:
		off = etherLen
		if binary.BigEndian.Uint16(b[12:]) == etherTypeVLAN {
			off += 4
		}
		p.setRoCE(b, off+globalRouteHeader)
	case ok && proto == protoUDP && len(b) >= off+udpHeader && binary.BigEndian.Uint16(b[off+2:]) == PortRoCEv2:
		p.setRoCE(b, off+udpHeader)
	case ok && proto == protoTCP && len(b) >= off+20:
		const syn, ack = 0x02, 0x10
		segment := b[off:]
		header := max(20, int(segment[12]>>4)*4)
		p.TCP, p.SYN, p.ACK = true, segment[13]&syn != 0, segment[13]&ack != 0
		p.SMC = p.SYN && wire.HasTCPOption(segment[20:min(len(segment), header)])
		p.Payload = segment[min(len(segment), header):]
	}
	return p
}

// setRoCE sets the fields of a RoCE packet whose base transport header is at off.
func (p *Packet) setRoCE(b []byte, off int) {
	p.RoCE = true
	if len(b) >= off+baseTransportHeader {
		p.Opcode, p.Payload = b[off], b[off+baseTransportHeader:]
	}
}
