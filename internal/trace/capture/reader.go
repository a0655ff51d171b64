// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"smcr/internal/trace/decode"
)

// Errors of a Reader.
var (
	// ErrFormat means that the file is neither pcap nor pcapng, or is malformed.
	ErrFormat = errors.New("capture: not a capture file in pcap or pcapng format")
	// ErrTruncated means that the file ends in the middle of a packet, as it does while
	// another program writes it.
	ErrTruncated = errors.New("capture: the file ends in the middle of a packet")
)

// The link types that a Reader knows (https://www.tcpdump.org/linktypes.html).
const (
	linkEthernet  = 1
	linkRaw       = 101
	linkLinuxSLL  = 113
	linkIPv4      = 228
	linkIPv6      = 229
	linkLinuxSLL2 = 276
)

// gzipMagic begins a compressed file.
var gzipMagic = []byte{0x1f, 0x8b}

// ngMagic begins a pcapng file, in either byte order.
var ngMagic = []byte{0x0a, 0x0d, 0x0d, 0x0a}

// A Reader reads the packets of a file.
type Reader struct {
	next   func() ([]byte, gopacket.CaptureInfo, error)
	link   layers.LinkType
	mixed  bool // each packet has its own link type
	frames int
	// Skipped counts packets whose link type is not known.
	Skipped int
}

// NewReader begins to read a file, which may be compressed by gzip. The error matches
// ErrFormat if the beginning is not that of a capture file.
func NewReader(r io.Reader) (*Reader, error) {
	br := bufio.NewReader(r)
	if magic, _ := br.Peek(len(gzipMagic)); bytes.Equal(magic, gzipMagic) {
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrFormat, err)
		}
		br = bufio.NewReader(z)
	}
	magic, err := br.Peek(len(ngMagic))
	if err != nil {
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%w: it has fewer than %d bytes", ErrFormat, len(ngMagic))
		}
		return nil, err
	}
	if bytes.Equal(magic, ngMagic) {
		ng, err := pcapgo.NewNgReader(br, pcapgo.NgReaderOptions{WantMixedLinkType: true, SkipUnknownVersion: true})
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrFormat, err)
		}
		return &Reader{next: ng.ZeroCopyReadPacketData, mixed: true}, nil
	}
	p, err := pcapgo.NewReader(br)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return &Reader{next: p.ZeroCopyReadPacketData, link: p.LinkType()}, nil
}

// Next reads the next packet into p. The data is valid until the next call. At the end, the
// error is [io.EOF]. Other errors match ErrTruncated or ErrFormat, or are those of the file.
func (r *Reader) Next(p *decode.Packet) error {
	for {
		b, ci, err := r.next()
		switch {
		case errors.Is(err, io.EOF):
			return io.EOF
		case errors.Is(err, io.ErrUnexpectedEOF):
			return ErrTruncated
		case err != nil:
			return fmt.Errorf("%w: packet %d: %w", ErrFormat, r.frames+1, err)
		}
		r.frames++
		link := r.link
		if r.mixed && len(ci.AncillaryData) > 0 {
			link, _ = ci.AncillaryData[0].(layers.LinkType)
		}
		*p = decode.Packet{Frame: r.frames, Time: ci.Timestamp, Data: b, Length: ci.Length}
		switch link {
		case linkEthernet:
			p.Link = decode.Ethernet
		case linkLinuxSLL:
			p.Link = decode.LinuxSLL
		case linkLinuxSLL2:
			p.Link = decode.LinuxSLL2
		case linkRaw, linkIPv4, linkIPv6:
			p.Link = decode.RawIP
		default:
			r.Skipped++
			continue
		}
		return nil
	}
}
