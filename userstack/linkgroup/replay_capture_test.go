// SPDX-License-Identifier: Apache-2.0

package linkgroup

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"smcr/smc"
	"smcr/userstack/wire"
)

// A capMessage is something that one of two kernels sent, from a capture: a CLC
// message, a message on a link, or an RDMA WRITE.
type capMessage struct {
	where  string // file and frame
	at     uint64 // µs
	server bool   // the server sent it
	port   uint16 // of the client's TCP connection, for a CLC message
	clc    wire.CLC
	cut    bool   // the capture lacks the end, which is taken for zeros
	to     capEnd // queue pair that it goes to
	msg    []byte
	write  capWrite // unless its size is 0
}

// capEnd is the queue pair of one end of a link. Each soft-RoCE device counts
// its queue pairs from 17, so that the number alone says nothing.
type capEnd struct {
	gid smc.GID
	qpn smc.QPN
}

// capWrite is what an RDMA WRITE writes, as it stands in the RETH.
type capWrite struct {
	addr uint64
	rkey smc.RKey
	size int
}

// capReader takes captures apart. In all of them the addresses of the server
// end in 1.
type capReader struct {
	t       *testing.T
	streams map[[2]uint16]*capStream // TCP ports, source first
	psns    map[capEnd]uint32        // of the last packet to a queue pair
	out     []capMessage
}

type capStream struct {
	next uint32 // sequence number
	buf  []byte
}

// readCaptures reads captures that were made at the same time, in the order of
// time.
func readCaptures(t *testing.T, names ...string) []capMessage {
	t.Helper()
	r := &capReader{t: t, streams: map[[2]uint16]*capStream{}, psns: map[capEnd]uint32{}}
	for _, name := range names {
		r.file(name)
	}
	slices.SortStableFunc(r.out, func(a, b capMessage) int { return int(int64(a.at - b.at)) })
	if len(r.out) == 0 {
		t.Fatalf("%s: no messages", names)
	}
	return r.out
}

// file reads a pcap file of Ethernet frames (https://www.tcpdump.org/manpages/pcap-savefile.5.html).
func (r *capReader) file(name string) {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "replay", name+".pcap"))
	if err != nil {
		r.t.Fatal(err)
	}
	le := binary.LittleEndian
	if len(b) < 24 || le.Uint32(b) != 0xa1b2c3d4 || le.Uint32(b[20:]) != 1 {
		r.t.Fatalf("%s: no pcap file of Ethernet frames", name)
	}
	b = b[24:]
	for n := 1; len(b) > 0; n++ {
		if len(b) < 16 || len(b)-16 < int(le.Uint32(b[8:])) {
			r.t.Fatalf("%s: cut short in frame %d", name, n)
		}
		at := uint64(le.Uint32(b))*1_000_000 + uint64(le.Uint32(b[4:]))
		size := 16 + int(le.Uint32(b[8:]))
		r.frame(capMessage{where: fmt.Sprintf("%s frame %d", name, n), at: at}, b[16:size])
		b = b[size:]
	}
}

// frame reads a frame. What is no SMC-R is left out.
func (r *capReader) frame(m capMessage, f []byte) {
	be := binary.BigEndian
	if len(f) < 14+20 {
		return
	}
	var proto byte
	var src byte
	switch ip := f[14:]; be.Uint16(f[12:]) {
	case 0x0800:
		if n := int(be.Uint16(ip[2:])); n <= len(ip) {
			ip = ip[:n] // not what Ethernet pads
		} else {
			ip = append(slices.Clone(ip), make([]byte, n-len(ip))...)
			m.cut = true
		}
		proto, src = ip[9], ip[15]
		m.to.gid = smc.GID{10: 0xff, 11: 0xff, 12: ip[16], 13: ip[17], 14: ip[18], 15: ip[19]}
		f = ip[int(ip[0]&15)*4:]
	case 0x86dd:
		if len(ip) < 40 {
			return
		}
		proto, src = ip[6], ip[23]
		m.to.gid = smc.GID(ip[24:40])
		f = ip[40:]
	default:
		return
	}
	m.server = src == 1
	switch {
	case proto == 6 && len(f) >= 20:
		r.tcp(m, f)
	case proto == 17 && len(f) >= 8+12 && be.Uint16(f[2:]) == 4791:
		r.roce(m, f[8:])
	}
}

// tcp collects the bytes of each direction and takes CLC messages off. Nothing
// else is said on these connections once both sides speak SMC.
func (r *capReader) tcp(m capMessage, f []byte) {
	be := binary.BigEndian
	key := [2]uint16{be.Uint16(f), be.Uint16(f[2:])}
	m.port = key[0]
	if m.server {
		m.port = key[1]
	}
	seq, data := be.Uint32(f[4:]), f[int(f[12]>>4)*4:]
	s := r.streams[key]
	if f[13]&2 != 0 { // SYN
		s = &capStream{next: seq + 1}
		r.streams[key] = s
	}
	if s == nil || seq != s.next {
		return
	}
	s.next += uint32(len(data))
	s.buf = append(s.buf, data...)
	for len(s.buf) >= wire.HeaderLen {
		h, err := wire.ParseHeader(s.buf)
		if err != nil {
			r.t.Fatalf("%s: %v", m.where, err)
		}
		if len(s.buf) < int(h.Length) {
			return
		}
		if m.cut {
			copy(s.buf[h.Length-4:h.Length], s.buf) // the trailer
		}
		if m.clc, err = wire.ParseCLC(s.buf[:h.Length]); err != nil {
			r.t.Fatalf("%s: %v", m.where, err)
		}
		if again, err := m.clc.AppendBinary(nil); err != nil || string(again) != string(s.buf[:h.Length]) {
			r.t.Fatalf("%s: % x is encoded as % x, %v", m.where, s.buf[:h.Length], again, err)
		}
		s.buf = s.buf[h.Length:]
		r.out = append(r.out, m)
	}
}

// Opcodes of reliable connections (InfiniBand specification, 9.2.1).
const (
	opSendOnly   = 0x04
	opWriteFirst = 0x06
	opWriteOnly  = 0x0a
)

// roce reads a packet from its base transport header on.
func (r *capReader) roce(m capMessage, f []byte) {
	be := binary.BigEndian
	m.to.qpn = smc.QPN(be.Uint32(f[4:]) & 0xffffff)
	psn := be.Uint32(f[8:]) & 0xffffff
	switch op := f[0]; {
	case op > opWriteOnly:
		return // acknowledgments
	case r.psns[m.to] != 0 && int32((psn-r.psns[m.to])<<8) <= 0:
		return // sent again
	case op == opSendOnly:
		m.msg = f[12 : len(f)-4-int(f[1]>>4&3)]
	case op == opWriteFirst || op == opWriteOnly:
		m.write = capWrite{be.Uint64(f[12:]), smc.RKey(be.Uint32(f[20:])), int(be.Uint32(f[24:]))}
	}
	r.psns[m.to] = psn
	if m.msg != nil || m.write.size > 0 {
		r.out = append(r.out, m)
	}
}
