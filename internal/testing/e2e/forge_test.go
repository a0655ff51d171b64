// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
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

// forgePorts returns how many ports n attempts need: one for each. The next ones to a port may
// be TCP, since the rendezvous of this user with it end without an answer.
func forgePorts(n int) string { return strconv.Itoa(n) }

// TestForgedCLC: a user has the sockets on which the stack sends CLC messages. This user
// cannot send a byte on such a socket before the connection is TCP, and the connections
// of others are not disturbed. SMCR_E2E_FORGE is the number of connections.
func TestForgedCLC(t *testing.T) {
	ofLauncher(t, "nothing that a user sends on an announced connection reaches the peer's connection: TestForged in package divert")
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
			c := l.A.StartCapture(t, netnstest.CaptureOptions{Filter: "tcp"})
			t.Logf("%d attempts: %s", n, test.forge(l, n))
			if dropped, err := c.Stop(); err != nil || dropped != 0 {
				t.Fatalf("the capture lacks %d packets: %v", dropped, err)
			}
			noForeign(t, c.File, n)
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

// TestForgedOwnAddress: packets to an address of the host go to another one, as with a port that
// containers publish. A user whose connections are to be joined with programs of the host cannot
// send a byte of CLC there, and gets a connection that is TCP.
func TestForgedOwnAddress(t *testing.T) {
	t.Run("NAT", func(t *testing.T) {
		forgedOwnAddress(t, 50, func(own string, l *lab) [][]string {
			return [][]string{{"nft", "add table ip smcrtest; " +
				"add chain ip smcrtest out { type nat hook output priority -100; }; add rule ip smcrtest out ip daddr " + own + " dnat to " + l.B.Addr() + "; " +
				"add chain ip smcrtest post { type nat hook postrouting priority 100; }; add rule ip smcrtest post ip daddr " + l.B.Addr() + " masquerade"}}
		})
	})
	// The segments have no socket any more when the gate's program could see them.
	t.Run("IPVS", func(t *testing.T) {
		needIPVS(t)
		forgedOwnAddress(t, 0, func(own string, l *lab) [][]string {
			return [][]string{
				{"sysctl", "-qw", "net.ipv4.vs.conntrack=1"},
				{"nft", "add table ip smcrtest; add chain ip smcrtest post { type nat hook postrouting priority 100; }; add rule ip smcrtest post ip daddr " + l.B.Addr() + " masquerade"},
				balance(own, l.B.Addr()),
			}
		})
	})
}

func needIPVS(t *testing.T) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "modprobe", "-a", "ip_vs", "ip_vs_rr").CombinedOutput(); err != nil {
		if _, serr := os.Stat("/proc/net/ip_vs"); serr != nil {
			t.Skipf("this kernel has no IPVS: %v: %s", err, out)
		}
	}
	netnstest.Require(t, "ipvsadm")
}

// balance is a command that leads connections to 50 ports of an address to another host, by IPVS.
func balance(addr, to string) []string {
	return []string{"sh", "-c", fmt.Sprintf("for p in $(seq 5001 5050); do ipvsadm -A -t %[1]s:$p -s rr && ipvsadm -a -t %[1]s:$p -r %[2]s:$p -m || exit 1; done", addr, to)}
}

// TestForgedBalanced: the load balancer of the kernel leads the connections of a user's programs to
// another host, and sends their segments without their socket, so that no gate sees them. Such
// connections announce nothing, and the user cannot send a byte of CLC.
func TestForgedBalanced(t *testing.T) {
	needIPVS(t)
	const n, virtual = 20, "10.77.0.99" // on the subnet of the hosts
	l := newLab(t, "setpriv", "python3")
	l.serve(l.A)
	l.serve(l.B)
	argv := balance(virtual, l.B.Addr())
	if out, err := l.A.Output(t.Context(), argv[0], argv[1:]...); err != nil {
		t.Fatalf("%q: %v\n%s", argv, err, out)
	}
	server := l.under(l.B, bin("probe"), "server", l.B.Addr()+":5001", forgePorts(n))
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	c := l.B.StartCapture(t, netnstest.CaptureOptions{Filter: "tcp"})
	// The hostile program gives up when it is told that a connection stays TCP.
	argv = as(hostileUser, bin("hostile"), "forge", virtual+":5001", strconv.Itoa(n))
	p := l.A.Go(t, argv[0], argv[1:]...)
	if err := p.Wait(time.Minute); err == nil || !strings.Contains(p.Log(), "IPVS") {
		t.Errorf("%v: %s", err, p.Log())
	}
	client := l.under(l.A, "python3", "-c", "import socket,sys; socket.create_connection((sys.argv[1], 5001), 10)", virtual)
	if err := client.Wait(time.Minute); err != nil || !strings.Contains(client.Log(), "0 connections over SMC-R, 1 over TCP") {
		t.Errorf("%v: %s", err, client.Log())
	}
	if dropped, err := c.Stop(); err != nil || dropped != 0 {
		t.Fatalf("the capture lacks %d packets: %v", dropped, err)
	}
	noForeign(t, c.File, 0)
	if flows, err := tcpFlows(c.File); err != nil || len(flows) == 0 {
		t.Errorf("%d connections, %v: the test shows nothing", len(flows), err)
	}
}

// forgedOwnAddress is TestForgedOwnAddress with the commands that lead packets elsewhere. announced
// is how many connections announce SMC.
func forgedOwnAddress(t *testing.T, announced int, lead func(own string, l *lab) [][]string) {
	t.Helper()
	ofLauncher(t, "a connection is announced at the device by which it leaves, with the addresses that it has there")
	const n, own = 50, "198.51.100.77"
	l := newLab(t, "setpriv", "nft", "ip", "python3")
	stacks := []*netnstest.Process{l.serve(l.A), l.serve(l.B)}
	for _, argv := range append([][]string{{"ip", "addr", "add", own + "/32", "dev", "lo"}}, lead(own, l)...) {
		if out, err := l.A.Output(t.Context(), argv[0], argv[1:]...); err != nil {
			t.Fatalf("%q: %v\n%s", argv, err, out)
		}
	}
	server := l.under(l.B, bin("probe"), "server", l.B.Addr()+":5001", forgePorts(n))
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	c := l.B.StartCapture(t, netnstest.CaptureOptions{Filter: "tcp"})
	argv := as(hostileUser, bin("hostile"), "forge-own", own+":5001", forgePorts(n))
	p := l.A.Go(t, argv[0], argv[1:]...)
	if err := p.Wait(time.Minute); err != nil {
		t.Errorf("%v\n%s", err, p.Log())
	}
	t.Log(p.Log())
	// The same for an honest program, which works.
	l.joins = true
	listens := l.under(l.A, "python3", "-u", "-c", ownPublished, own, "5001")
	if err := listens.Wait(time.Minute); err != nil || !strings.Contains(listens.Log(), "peer "+own) {
		t.Errorf("%v\n%s", err, listens.Log())
	}
	if strings.Contains(listens.Log(), "cannot see when a program closes its end") {
		t.Skip("needs eBPF programs at functions of the kernel (fexit): there are no pairs")
	}
	if dropped, err := c.Stop(); err != nil || dropped != 0 {
		t.Fatalf("the capture lacks %d packets: %v", dropped, err)
	}
	noForeign(t, c.File, announced)
	if !strings.Contains(p.Log(), "with an end: 0, left to TCP: 50\n") {
		t.Error("the stack has joined a program with nobody")
	}
	terminate(t, server)
	for _, s := range stacks {
		terminate(t, s)
	}
}

// ownPublished connects to a published port of an own address.
const ownPublished = `
import socket, sys
l = socket.socket(); l.bind(('127.0.0.1', 0)); l.listen()
for i in range(5):
    c = socket.create_connection((sys.argv[1], int(sys.argv[2]) + i), 10)
    print('peer', c.getpeername()[0]); c.close()
`

// forge makes the hostile user connect to the server of another user.
func (l *lab) forge(n int) string { return l.forgeTo(l.B.Addr()+":5001", n) }

// forgeBoth makes users of both hosts forge messages on the same connections.
func (l *lab) forgeBoth(n int) string {
	l.t.Helper()
	addr := l.B.Addr() + ":6001"
	argv := as(otherUser, bin("hostile"), "forge-accepted", addr, forgePorts(n))
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
	argv := as(hostileUser, bin("hostile"), "forge", addr, strconv.Itoa(n))
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
	argv := as(hostileUser, bin("hostile"), "forge-accepted", addr, forgePorts(n))
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
