// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"smcr/internal/testing/netnstest"
	"smcr/userstack/wire"
)

const (
	// arrowWidth is the number of columns between the two hosts.
	arrowWidth = 44
	// barWidth is the number of columns of the bar that shows the bytes.
	barWidth = 30
	// maxArrows is how many messages of the handshake the picture shows.
	maxArrows = 24
)

// Opcodes of the base transport header, reliable connection (InfiniBand, table 38).
const (
	sendOnly   = 0x04
	writeFirst = 0x06
	writeLast  = 0x0b // write only, with immediate data
)

// A picture shows what crosses the wire while it does: the messages of the handshake
// as arrows between the two hosts, then a bar with the bytes.
type picture struct {
	out      io.Writer
	terminal bool             // the bar stays on its line
	a        net.HardwareAddr // of host A
	total    int64            // bytes that A sends

	mu        sync.Mutex
	start     time.Time // of the first frame that is shown
	arrows    int
	data      time.Time // of the first data that A has sent
	roce, tcp int64     // bytes of frames of A, since then
	packets   int
}

func newPicture(pair *netnstest.Pair, total int64) *picture {
	stat, err := os.Stdout.Stat()
	return &picture{
		out: os.Stdout, terminal: err == nil && stat.Mode()&os.ModeCharDevice != 0,
		a: pair.A.Links[0].MAC, total: total,
	}
}

// head draws the two hosts, each above its end of the arrows.
func (p *picture) head(a, b string) {
	const left = len("123456789 ms  |") - 1 // columns before the end of A, see arrow
	fmt.Fprintf(p.out, "\n%*s%s%*s%s\n", left-len(a)/2, "", a, arrowWidth-(len(a)+1)/2-len(b)/2, "", b)
}

// run draws what the capture sees until ctx is done.
func (p *picture) run(ctx context.Context, capture *netnstest.Capture) error {
	period := time.Second
	if p.terminal {
		period = 100 * time.Millisecond
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(period)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				p.bar(true)
				return
			case <-tick.C:
				p.bar(false)
			}
		}
	}()
	err := capture.Follow(ctx, p.packet)
	<-done
	return err
}

// packet takes a frame of the capture.
func (p *picture) packet(k netnstest.Packet) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fromA := bytes.Equal(k.Source, p.a)
	if text := describe(k); text != "" && p.arrows < maxArrows && p.data.IsZero() {
		p.arrow(k.At, fromA, text)
	}
	if !fromA {
		return
	}
	if p.data.IsZero() {
		if k.RoCE && k.Opcode >= writeFirst && k.Opcode <= writeLast || k.TCP && k.Length > 1000 {
			p.data = k.At
		} else {
			return
		}
	}
	switch {
	case k.RoCE:
		p.roce += int64(k.Length)
	case k.TCP:
		p.tcp += int64(k.Length)
	}
	p.packets++
}

// describe names a frame of the handshake, or returns "".
func describe(k netnstest.Packet) string {
	switch {
	case k.TCP && k.SYN:
		name := "TCP SYN"
		if k.ACK {
			name = "TCP SYN-ACK"
		}
		if k.SMC {
			name += " with the SMC option"
		}
		return name
	case k.TCP:
		if h, err := wire.ParseHeader(k.Payload); err == nil {
			return fmt.Sprintf("CLC %s, version %d", h.Type, h.Version)
		}
	case k.RoCE && k.Opcode == sendOnly && len(k.Payload) >= wire.LLCLen:
		return describeLLC(k.Payload)
	}
	return ""
}

// describeLLC names an LLC message from its first bytes, and returns "" for CDC.
func describeLLC(b []byte) string {
	if wire.IsCDC(b) {
		return ""
	}
	h, err := wire.ParseLLCHeader(b[:wire.LLCLen])
	if err != nil {
		return "LLC, version 2" // longer than what the capture keeps of it
	}
	text := "LLC " + h.Type.String()
	if h.Reply {
		text += ", reply"
	}
	return text
}

// arrow draws a message from one host to the other. The caller holds the lock.
func (p *picture) arrow(at time.Time, fromA bool, text string) {
	if p.start.IsZero() {
		p.start = at
	}
	p.arrows++
	line := " " + text + " "
	left := max(2, (arrowWidth-2-len(line))/2)
	right := max(2, arrowWidth-2-len(line)-left)
	l, r := "<"+strings.Repeat("-", left-1), strings.Repeat("-", right)
	if fromA {
		l, r = strings.Repeat("-", left), strings.Repeat("-", right-1)+">"
	}
	fmt.Fprintf(p.out, "%9.1f ms  |%s%s%s|\n", float64(at.Sub(p.start).Microseconds())/1000, l, line, r)
}

// bar draws how many bytes A has sent. last ends the line.
func (p *picture) bar(last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.data.IsZero() {
		return
	}
	sent := p.roce + p.tcp
	full := int(min(sent, p.total) * barWidth / max(p.total, 1))
	text := fmt.Sprintf("  A -> B [%s%s] %5d MiB as RoCE, %d MiB as TCP, %d packets",
		strings.Repeat("#", full), strings.Repeat(".", barWidth-full), p.roce>>20, p.tcp>>20, p.packets)
	switch {
	case !p.terminal:
		fmt.Fprintln(p.out, text)
	case last:
		fmt.Fprintf(p.out, "\r%s\n", text)
	default:
		fmt.Fprintf(p.out, "\r%s", text)
	}
}
