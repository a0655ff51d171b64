// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// forgeMark is the peer ID of messages that the program hostile forges.
const forgeMark = "FORGED!!"

// forgeAttempts is the number of connections that the hostile user makes, and the number
// that it accepts.
func forgeAttempts(t *testing.T) int {
	v := os.Getenv("SMCR_E2E_FORGE")
	if v == "" {
		return 300
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// forgePorts returns how many ports n attempts need: one for each, since a short connection may make the next ones to a port TCP.
func forgePorts(n int) string { return strconv.Itoa(n) }

// TestForgedCLC: users send CLC messages of their own on connections that announce SMC, as early and in as many ways as they can.
// No byte of them is on the connection on which the stacks send theirs, and the connections
// of others are not disturbed. SMCR_E2E_FORGE is the number of connections.
func TestForgedCLC(t *testing.T) {
	n := forgeAttempts(t)
	for _, test := range []struct {
		name  string
		forge func(l *lab, n int) string
	}{{"connecting", (*lab).forge}, {"accepting", (*lab).forgeAccepted}, {"both ends", (*lab).forgeBoth}} {
		t.Run(test.name, func(t *testing.T) {
			l := newLab(t, "setpriv")
			stacks := []*netnstest.Process{l.serve(l.A), l.serve(l.B)}
			addr := l.B.Addr() + ":5001"
			server := l.under(l.B, bin("probe"), "server", addr, forgePorts(n))
			if err := server.WaitOutput("listening", startTime); err != nil {
				t.Fatal(err)
			}
			victim := l.under(l.A, bin("probe"), "client", addr, "20", "-busy")
			if err := victim.WaitOutput("holding 20 connections", startTime); err != nil {
				t.Fatal(err)
			}
			c := l.A.StartCapture(t, netnstest.CaptureOptions{Filter: onWire(l.A, "tcp")})
			t.Logf("%d attempts: %s", n, test.forge(l, n))
			if dropped, err := c.Stop(); err != nil || dropped != 0 {
				t.Fatalf("the capture lacks %d packets: %v", dropped, err)
			}
			noForeign(t, c.File, n*9/10) // those with data in the SYN are TCP
			if log := victim.Log(); strings.Contains(log, "ended") {
				t.Errorf("connections of another user:\n%s", log)
			}
			terminate(t, victim)
			wantSummary(t, victim.Log(), 20)
			l.exchanges(otherUser, addr)
			terminate(t, server)
			for _, s := range stacks {
				terminate(t, s)
			}
		})
	}
}

// noForeign wants that a capture has n connections on which both ends announced SMC, and that none
// but the stacks has sent a byte on them.
func noForeign(t *testing.T, file string, n int) {
	t.Helper()
	flows, err := tcpFlows(file)
	if err != nil {
		t.Fatal(err)
	}
	announced, foreign, bytes := 0, 0, 0
	for _, f := range flows {
		if !f.announced() {
			continue
		}
		announced++
		for from := range f.sides {
			b, err := f.clc(from)
			bytes += b
			if err != nil {
				foreign++
				if foreign < 10 {
					t.Errorf("%v: %v", from, err)
				}
			}
		}
	}
	t.Logf("%d connections with the option, %d bytes of CLC, %d foreign", announced, bytes, foreign)
	if announced < n {
		t.Errorf("%d connections with the option, want %d: the test shows nothing", announced, n)
	}
}

// forger is the command line of the program hostile under smcr run.
func forger(args ...string) []string {
	return append([]string{bin("smcr"), "run", "--mode", "user", "--no-adapt", "--", bin("hostile")}, args...)
}

// forge makes the hostile user connect to the server of another user.
func (l *lab) forge(n int) string { return l.forgeTo(l.B.Addr()+":5001", n) }

// forgeBoth makes users of both hosts forge messages on the same connections.
func (l *lab) forgeBoth(n int) string {
	l.t.Helper()
	addr := l.B.Addr() + ":6001"
	argv := as(otherUser, forger("forge-accepted", addr, forgePorts(n))...)
	p := l.B.Go(l.t, argv[0], argv[1:]...)
	if err := p.WaitOutput("listening", startTime); err != nil {
		l.t.Fatal(err)
	}
	said := l.forgeTo(addr, n)
	terminate(l.t, p)
	return said
}

func (l *lab) forgeTo(addr string, n int) string {
	l.t.Helper()
	argv := as(hostileUser, forger("forge", addr, strconv.Itoa(n))...)
	p := l.A.Go(l.t, argv[0], argv[1:]...)
	if err := p.Wait(time.Minute + time.Duration(n)*100*time.Millisecond); err != nil {
		l.t.Errorf("%v\n%s", err, p.Log())
	}
	return strings.TrimSpace(p.Log())
}

// forgeAccepted makes the hostile user accept connections of another user.
func (l *lab) forgeAccepted(n int) string {
	l.t.Helper()
	addr := l.A.Addr() + ":6001"
	argv := as(hostileUser, forger("forge-accepted", addr, forgePorts(n))...)
	p := l.A.Go(l.t, argv[0], argv[1:]...)
	if err := p.WaitOutput("listening", startTime); err != nil {
		l.t.Fatal(err)
	}
	// The connections fail or are refused. Nothing else may happen.
	c := l.under(l.B, bin("probe"), "client", addr, strconv.Itoa(n), forgePorts(n))
	if err := c.Wait(time.Minute); err != nil && !strings.Contains(err.Error(), "exit status") {
		l.t.Fatalf("%v\n%s", err, c.Log())
	}
	terminate(l.t, p)
	return fmt.Sprint(len(p.Log()), " bytes of log")
}

// flow is a TCP connection in a capture.
type flow struct {
	sides map[netip.AddrPort]*side
}

// side has what one end has sent.
type side struct {
	option bool   // on its SYN or SYN-ACK
	first  uint32 // sequence number of its first byte
	parts  []part
}

type part struct {
	off, packet int
	data        []byte
}

// announced reports whether both ends have announced SMC.
func (f *flow) announced() bool {
	for _, s := range f.sides {
		if !s.option {
			return false
		}
	}
	return len(f.sides) == 2
}

var eyecatcher = []byte{0xe2, 0xd4, 0xc3, 0xd9}

// clc reads what one end has sent as CLC messages, up to a DECLINE of either end, after
// which data may follow. It returns the number of bytes. Anything else than CLC messages
// is an error.
func (f *flow) clc(from netip.AddrPort) (int, error) {
	declined := 1 << 62
	for _, s := range f.sides {
		if n := s.declined(); n >= 0 {
			declined = min(declined, n)
		}
	}
	b := f.sides[from].stream(declined)
	for rest := b; len(rest) > 0; {
		if len(rest) < 12 || !bytes.HasPrefix(rest, eyecatcher) {
			return len(b), fmt.Errorf("not CLC: %q in %q", rest, b)
		}
		n := int(binary.BigEndian.Uint16(rest[5:]))
		if n < 12 || n > len(rest) || !bytes.Equal(rest[n-4:n], eyecatcher) {
			return len(b), fmt.Errorf("not a whole message: %q in %q", rest, b)
		}
		if bytes.Contains(rest[:n], []byte(forgeMark)) {
			return len(b), fmt.Errorf("forged: %q", rest[:n])
		}
		if rest = rest[n:]; rest != nil && b[len(b)-len(rest)-n+4] == 4 {
			break // data after a DECLINE
		}
	}
	return len(b), nil
}

// stream returns what one end has sent in packets up to number last, until the first gap.
func (s *side) stream(last int) (b []byte) {
	slices.SortStableFunc(s.parts, func(a, b part) int { return cmp.Compare(a.off, b.off) })
	for _, p := range s.parts {
		if p.packet > last || p.off > len(b) || p.off+len(p.data) <= len(b) {
			continue
		}
		b = append(b, p.data[len(b)-p.off:]...)
	}
	return b
}

// declined returns the number of the packet with the end's DECLINE, or -1. Bytes that
// look like a DECLINE within another message do not count.
func (s *side) declined() int {
	b, off := s.stream(1<<62), 0
	for off+8 <= len(b) && bytes.HasPrefix(b[off:], eyecatcher) {
		n := int(binary.BigEndian.Uint16(b[off+5:]))
		if n < 12 {
			return -1
		}
		if b[off+4] == 4 && !bytes.Contains(b[off:min(len(b), off+n)], []byte(forgeMark)) {
			for _, p := range s.parts {
				if p.off <= off && off < p.off+len(p.data) {
					return p.packet
				}
			}
		}
		off += n
	}
	return -1
}

// tcpFlows reads a capture of IPv4 on Ethernet.
func tcpFlows(file string) (all []*flow, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if len(b) < 24 || binary.NativeEndian.Uint32(b) != 0xa1b2c3d4 {
		return nil, fmt.Errorf("%s: not a pcap file of this machine", file)
	}
	flows := map[[2]netip.AddrPort]*flow{}
	b = b[24:]
	for packet := 0; len(b) >= 16; packet++ {
		n := int(binary.NativeEndian.Uint32(b[8:]))
		if len(b) < 16+n {
			break
		}
		frame := b[16 : 16+n]
		b = b[16+n:]
		if len(frame) < 14+40 || binary.BigEndian.Uint16(frame[12:]) != unix.ETH_P_IP {
			continue
		}
		ip := frame[14:]
		ip = ip[:min(len(ip), int(binary.BigEndian.Uint16(ip[2:])))]
		tcp := ip[int(ip[0]&15)*4:]
		hdr := int(tcp[12]>>4) * 4
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[12:])), binary.BigEndian.Uint16(tcp))
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[16:])), binary.BigEndian.Uint16(tcp[2:]))
		key := [2]netip.AddrPort{from, to}
		if from.Compare(to) > 0 {
			key = [2]netip.AddrPort{to, from}
		}
		seq, syn := binary.BigEndian.Uint32(tcp[4:]), tcp[13]&2 != 0
		if syn && tcp[13]&16 == 0 && (flows[key] == nil || flows[key].sides[from] == nil || flows[key].sides[from].first != seq+1) {
			flows[key] = &flow{map[netip.AddrPort]*side{}} // a port can be used again
			all = append(all, flows[key])
		}
		f := flows[key]
		if f == nil {
			continue // the connection began before the capture
		}
		s := f.sides[from]
		if s == nil {
			s = &side{}
			f.sides[from] = s
		}
		if syn {
			s.first = seq + 1
			s.option = s.option || bytes.Contains(tcp[20:hdr], append([]byte{254, 6}, eyecatcher...))
		}
		if data := tcp[hdr:]; len(data) > 0 {
			s.parts = append(s.parts, part{int(int32(seq - s.first)), packet, data})
		}
	}
	return all, nil
}
