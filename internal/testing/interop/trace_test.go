// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/guest"
	"smcr/internal/testing/testkind"
	"smcr/rdmaverbs/softroce/header"
	"smcr/userstack/wire"
)

// A frame is a message of the protocol on the wire. Retransmitted packets count as one
// frame. RDMA writes and acknowledgements are no frames.
type frame struct {
	at       time.Time
	from, to netip.Addr
	ports    [2]uint16 // TCP ports: source, destination
	flags    byte      // TCP flags
	qp       uint32    // RoCE: destination queue pair
	clc      wire.CLC
	llc      wire.LLC
	cdc      *wire.CDC
}

// Flags of TCP.
const (
	tcpFIN = 0x01
	tcpSYN = 0x02
	tcpRST = 0x04
)

// A capture is a running capture of a link in a guest.
type capture struct {
	g    *guest.Guest
	cmd  *guest.Cmd
	file string // on the host
}

// snapLen is enough for every whole message, but not for data.
const snapLen = 512

// messages is the filter for TCP, and for SENDs of one packet without RDMA writes.
const messages = "tcp or (udp dst port 4791 and udp[8] = 4)"

// newCapture captures the messages on a netdev in the initial namespace until the end of
// the test.
func newCapture(t *testing.T, g *guest.Guest, netdev string) *capture {
	t.Helper()
	name := netdev + ".pcap"
	c := &capture{g: g, file: filepath.Join(g.Share(), name)}
	c.cmd = g.Command("sh", "-c", "exec tcpdump -i "+netdev+" -n -s "+fmt.Sprint(snapLen)+
		" -B 16384 -U --immediate-mode -Z root -w "+filepath.Join(guest.SharePath, name)+" '"+messages+"' 2>&1")
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { (&bed{Guest: g}).stop(t, c.cmd) })
	return c
}

// start waits until the capture runs.
func (c *capture) start(t *testing.T) {
	t.Helper()
	eventually(t, "tcpdump listens", func() bool { return c.size() >= pcapHeader })
}

const (
	pcapHeader = 24
	pcapRecord = 16
)

func (c *capture) size() int64 {
	info, err := os.Stat(c.file)
	if err != nil {
		return 0
	}
	return info.Size()
}

// since returns the frames after an earlier size of the file. It waits until no more
// frames arrive.
func (c *capture) since(t *testing.T, from int64) []frame {
	t.Helper()
	last := int64(-1)
	// Real time: no more frames arrive in it.
	for deadline := time.Now().Add(testkind.Patience); time.Now().Before(deadline); time.Sleep(300 * time.Millisecond) {
		if n := c.size(); n == last {
			break
		} else {
			last = n
		}
	}
	b, err := os.ReadFile(c.file)
	if err != nil {
		t.Fatal(err)
	}
	frames, err := parseFrames(b[from:])
	if err != nil {
		t.Fatal(err)
	}
	return frames
}

// readCapture returns the frames of a whole file.
func readCapture(t *testing.T, file string) []frame {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	frames, err := parseFrames(b[pcapHeader:])
	if err != nil {
		t.Fatal(err)
	}
	return frames
}

// parseFrames parses records of a little-endian pcap file with times in microseconds and
// Ethernet frames. The last one may be incomplete.
func parseFrames(b []byte) ([]frame, error) {
	type seen struct {
		from   netip.Addr
		qp     uint32
		number uint32
		ports  [2]uint16
		flags  byte
	}
	known := make(map[seen]bool)
	var frames []frame
	for len(b) >= pcapRecord {
		n := int(binary.LittleEndian.Uint32(b[8:]))
		if n > 1<<18 {
			return nil, fmt.Errorf("record of %d bytes", n)
		}
		if len(b) < pcapRecord+n {
			break
		}
		at := time.Unix(int64(binary.LittleEndian.Uint32(b)), 1000*int64(binary.LittleEndian.Uint32(b[4:])))
		packet := b[pcapRecord : pcapRecord+n]
		b = b[pcapRecord+n:]
		if len(packet) < 34 || binary.BigEndian.Uint16(packet[12:]) != 0x0800 {
			continue
		}
		ip := header.IPv4(packet[14:])
		f := frame{at: at, from: ip.Src(), to: ip.Dst()}
		payload := packet[14+ip.HeaderLen() : min(len(packet), 14+int(ip.TotalLen()))]
		key := seen{from: f.from}
		var ok bool
		var err error
		switch ip.Protocol() {
		case 6:
			if len(payload) < 20 {
				continue
			}
			f.ports = [2]uint16{binary.BigEndian.Uint16(payload), binary.BigEndian.Uint16(payload[2:])}
			f.flags = payload[13] & (tcpFIN | tcpSYN | tcpRST)
			data := payload[int(payload[12]>>4)*4:]
			if len(data) > 0 {
				f.clc, err = wire.ParseCLC(data)
				if err != nil && len(data) >= 4 && binary.BigEndian.Uint32(data) == 0xe2d4c3d9 {
					return nil, fmt.Errorf("%v: CLC message from %v: %w: % x", at, f.from, err, data)
				}
			}
			ok = f.flags != 0 || f.clc != nil
			key.ports, key.flags, key.number = f.ports, f.flags, binary.BigEndian.Uint32(payload[4:])
		case 17:
			if len(payload) < 8+header.BTHLen+4 || binary.BigEndian.Uint16(payload[2:]) != 4791 {
				continue
			}
			bth := header.BTH(payload[8:])
			if bth.Opcode() != header.SendOnly {
				continue
			}
			f.qp = bth.DestQP()
			key.qp, key.number = f.qp, bth.PSN()
			data := payload[8+header.BTHLen : len(payload)-4]
			data = data[:len(data)-int(bth.PadCount())]
			ok = true
			if wire.IsCDC(data) {
				var m wire.CDC
				m, err = wire.ParseCDC(data)
				f.cdc = &m
			} else {
				f.llc, err = wire.ParseLLC(data)
			}
			if err != nil {
				return nil, fmt.Errorf("%v: message from %v: %w: % x", at, f.from, err, data)
			}
		}
		if ok && !known[key] {
			known[key] = true
			frames = append(frames, f)
		}
	}
	return frames, nil
}

// String describes a frame without the values that differ between runs.
func (f frame) String() string {
	switch {
	case f.cdc != nil:
		return "CDC " + cdcFlags(*f.cdc)
	case f.llc != nil:
		s := strings.TrimPrefix(fmt.Sprint(f.llc.LLCType()), "LLC ")
		if f.llc.IsReply() {
			s += " reply"
		}
		return s
	case f.clc != nil:
		return strings.TrimSuffix(strings.TrimPrefix(fmt.Sprintf("%T", f.clc), "wire."), "V2")
	case f.flags&tcpRST != 0:
		return "RST"
	case f.flags&tcpFIN != 0:
		return "FIN"
	}
	return "SYN"
}

// cdcFlags returns the flags as the letters of RFC 7609, figure 41.
func cdcFlags(m wire.CDC) string {
	s := ""
	for i, c := range "BPURF" {
		if m.Flags&(0x80>>i) != 0 {
			s += string(c)
		}
	}
	for i, c := range "DCA" {
		if m.State&(0x80>>i) != 0 {
			s += string(c)
		}
	}
	return s
}

// unsure is what describeFrames leaves out, because it depends on the order of what happens at the same time.
type unsure struct {
	race  bool // which side is first
	flags wire.ProducerFlags
	state wire.StateFlags
}

// describeFrames describes the frames of one connection: the CLC messages, the changes of the
// state flags of CDC in their order, the other flags that each side used, and how TCP ended, but for what is
// in without. With race, it describes each side separately.
func describeFrames(frames []frame, port uint16, without unsure) (string, error) {
	var client netip.Addr
	name := func(f frame) string {
		if f.from == client {
			return "client"
		}
		return "server"
	}
	var clc, states []string
	tcp := map[string]string{}
	flags := map[string]wire.ProducerFlags{}
	state := map[string]wire.StateFlags{}
	for _, f := range frames {
		if f.clc != nil || f.flags != 0 {
			if f.ports[0] != port && f.ports[1] != port {
				continue
			}
		}
		if !client.IsValid() {
			if f.flags&tcpSYN == 0 {
				continue
			}
			client = f.from
		}
		who := name(f)
		switch {
		case f.clc != nil:
			clc = append(clc, who+" "+f.String())
		case f.flags&(tcpFIN|tcpRST) != 0:
			tcp[who] = f.String()
		case f.cdc != nil:
			if f.cdc.Flags&wire.ProdFailoverVerify == 0 {
				flags[who] |= f.cdc.Flags &^ without.flags
			}
			if now := f.cdc.State &^ without.state; now != state[who] {
				states = append(states, who+" "+cdcFlags(wire.CDC{State: now}))
				state[who] = now
			}
		}
	}
	if !client.IsValid() {
		return "", errors.New("no connection in the capture")
	}
	if without.race {
		slices.Sort(states)
	}
	text := "clc: " + strings.Join(clc, ", ") + "\ncdc: " + strings.Join(states, ", ") + "\n"
	for _, who := range []string{"client", "server"} {
		text += who + " flags: " + cdcFlags(wire.CDC{Flags: flags[who]}) + "\n"
	}
	switch {
	case tcp["client"] == "RST" || tcp["server"] == "RST":
		text += "tcp: reset\n" // the FIN of the other side may arrive before the reset or not
	case tcp["client"] == "FIN" && tcp["server"] == "FIN":
		text += "tcp: ended in order\n"
	default:
		text += fmt.Sprintf("tcp: ended by client %s, by server %s\n", tcp["client"], tcp["server"])
	}
	return text, nil
}

// tcpEnded reports whether the TCP connection of a port has ended in both directions or
// was reset.
func tcpEnded(frames []frame, port uint16) bool {
	ended := map[netip.Addr]bool{}
	for _, f := range frames {
		if f.ports[0] != port && f.ports[1] != port {
			continue
		}
		if f.flags&tcpRST != 0 {
			return true
		}
		if f.flags&tcpFIN != 0 {
			ended[f.from] = true
		}
	}
	return len(ended) == 2
}

// unanswered returns the LLC requests without a reply, except those that need none.
func unanswered(frames []frame) []string {
	type kind struct {
		to netip.Addr
		t  wire.LLCType
	}
	open := map[kind]int{}
	var order []kind
	for _, f := range frames {
		if f.llc == nil || f.llc.LLCType() == wire.LLCDeleteLink {
			continue
		}
		if f.llc.IsReply() {
			open[kind{f.from, f.llc.LLCType()}]--
			continue
		}
		k := kind{f.to, f.llc.LLCType()}
		open[k]++
		order = append(order, k)
	}
	var list []string
	for _, k := range order {
		if open[k] > 0 {
			list = append(list, fmt.Sprintf("%v by %v", k.t, k.to))
			open[k] = 0
		}
	}
	return list
}
