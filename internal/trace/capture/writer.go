// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"fmt"
	"io"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"smcr/internal/trace/decode"
)

// linkTypes are the numbers of the links.
var linkTypes = map[decode.Link]layers.LinkType{
	decode.Ethernet: linkEthernet, decode.LinuxSLL: linkLinuxSLL, decode.LinuxSLL2: linkLinuxSLL2, decode.RawIP: linkRaw,
}

// A Writer writes a pcapng file.
type Writer struct {
	ng  *pcapgo.NgWriter
	ids map[decode.Link]int // interfaces of the file
}

// NewWriter begins a file. The name of the program goes into it.
func NewWriter(w io.Writer, program string) (*Writer, error) {
	opts := pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: program}}
	ng, err := pcapgo.NewNgWriterInterface(w, ngInterface(decode.Ethernet), opts)
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	return &Writer{ng: ng, ids: map[decode.Link]int{decode.Ethernet: 0}}, nil
}

func ngInterface(l decode.Link) pcapgo.NgInterface {
	return pcapgo.NgInterface{LinkType: linkTypes[l], TimestampResolution: 9} // nanoseconds
}

// Write adds a packet with comments, which Wireshark shows. The packet was p.Length bytes
// long, and p.Data are the first of them.
func (w *Writer) Write(p *decode.Packet, comments ...string) error {
	id, ok := w.ids[p.Link]
	if !ok {
		var err error
		if id, err = w.ng.AddInterface(ngInterface(p.Link)); err != nil {
			return fmt.Errorf("capture: %w", err)
		}
		w.ids[p.Link] = id
	}
	ci := gopacket.CaptureInfo{
		Timestamp: p.Time, CaptureLength: len(p.Data), Length: max(p.Length, len(p.Data)), InterfaceIndex: id,
	}
	if err := w.ng.WritePacketWithOptions(ci, p.Data, pcapgo.NgPacketOptions{Comments: comments}); err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	return nil
}

// Flush writes what is still in memory.
func (w *Writer) Flush() error {
	if err := w.ng.Flush(); err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	return nil
}
