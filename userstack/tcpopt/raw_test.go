// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/userstack/wire"
)

// phantom is an address in the network of host A that no kernel has: no reset is sent for
// its segments.
var phantom = netip.AddrFrom4([4]byte{10, 77, 0, 99})

// addPhantom makes host B send packets for the phantom to the device of host A.
func (b *bed) addPhantom() {
	b.Helper()
	b.must(b.B.Do(func() error {
		l, err := netlink.LinkByName(b.B.Links[0].Name)
		if err != nil {
			return err
		}
		return netlink.NeighSet(&netlink.Neigh{
			LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: net.IP(phantom.AsSlice()), HardwareAddr: b.A.Links[0].MAC,
		})
	}))
}

// sendTCP sends a segment from the phantom to host B.
func (b *bed) sendTCP(src, dst int, flags byte, seq, ack uint32, options, data []byte) {
	b.Helper()
	for len(options)%4 != 0 {
		options = append(options, 1) // no operation
	}
	seg := binary.BigEndian.AppendUint16(nil, uint16(src))
	seg = binary.BigEndian.AppendUint16(seg, uint16(dst))
	seg = binary.BigEndian.AppendUint32(seg, seq)
	seg = binary.BigEndian.AppendUint32(seg, ack)
	seg = append(seg, byte(5+len(options)/4)<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
	seg = append(append(seg, options...), data...)
	from, to := phantom.As4(), b.B.Links[0].IPv4.As4()
	pseudo := slices.Concat(from[:], to[:], []byte{0, unix.IPPROTO_TCP}, binary.BigEndian.AppendUint16(nil, uint16(len(seg))))
	binary.BigEndian.PutUint16(seg[16:], checksum(append(pseudo, seg...)))

	ip := []byte{0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, unix.IPPROTO_TCP, 0, 0}
	ip = append(append(append(ip, from[:]...), to[:]...), seg...)
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	b.must(b.A.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, ip, 0, &unix.SockaddrInet4{Addr: to})
	}))
}

// checksum is the checksum of RFC 1071.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 != 0 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

const tcpFlagACK = 0x10

// mss is a maximum segment size option.
var mss = []byte{2, 4, 5, 180}

// TestForeignSYN sends SYNs of other forms.
func TestForeignSYN(t *testing.T) {
	b := newBed(t)
	b.addPhantom()
	opt := wire.AppendTCPOption(nil)
	b.listener(unix.AF_INET, "0.0.0.0", 4001, true)
	b.listener(unix.AF_INET, "0.0.0.0", 4002, false)
	tests := []struct {
		name    string
		options []byte
		port    int
		want    bool
	}{
		{"none", mss, 4001, false},
		{"the option alone", opt, 4001, true},
		{"the option in front", slices.Concat(opt, mss), 4001, true},
		{"the option behind", slices.Concat(mss, []byte{1, 1}, opt), 4001, true},
		{"twice", slices.Concat(opt, opt), 4001, true},
		{"to an unmarked listener", slices.Concat(mss, opt), 4002, false},
		{"other ExID", []byte{254, 6, 0xe2, 0xd4, 0xc3, 0xd8}, 4001, false},
		{"short ExID", []byte{254, 4, 0xe2, 0xd4}, 4001, false},
		{"longer", []byte{254, 8, 0xe2, 0xd4, 0xc3, 0xd9, 0, 0}, 4001, false},
		{"kind 253", []byte{253, 6, 0xe2, 0xd4, 0xc3, 0xd9}, 4001, false},
		{"cut by the end of the header", slices.Concat(mss, []byte{254, 6, 0xe2, 0xd4}), 4001, false},
		{"length 0", []byte{254, 0, 0xe2, 0xd4, 0xc3, 0xd9}, 4001, false},
		{"other experiment in front", slices.Concat([]byte{254, 6, 1, 2, 3, 4}, opt), 4001, true},
		// The kernel does not search after an experimental option that is too short for
		// an ExID.
		{"shorter experiment in front", slices.Concat([]byte{254, 4, 1, 2}, opt), 4001, false},
		{"shorter experiment behind", slices.Concat(opt, []byte{254, 4, 1, 2}), 4001, true},
	}
	capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
	for i, test := range tests {
		if test.port == 4001 && test.name != "shorter experiment in front" && wire.HasTCPOption(test.options) != test.want {
			t.Errorf("%s: package wire differs from the program", test.name)
		}
		b.sendTCP(5000+i, test.port, tcpFlagSYN, 1000, 0, slices.Clone(test.options), nil)
	}
	// Real time: the kernel repeats the first SYN-ACKs after a second.
	time.Sleep(1500 * time.Millisecond)
	answers := make([]int, len(tests))
	for _, s := range b.segments(capture) {
		i := s.dst - 5000
		if !s.syn || !s.ack || i < 0 || i >= len(tests) {
			continue
		}
		answers[i]++
		want := 0
		if tests[i].want {
			want = 1
		}
		if n := s.announces(); n != want {
			t.Errorf("%s: SYN-ACK %d has the option %d times, want %d: % x", tests[i].name, answers[i], n, want, s.options)
		}
	}
	for i, n := range answers {
		if n < 2 {
			t.Errorf("%s: %d SYN-ACKs, want a repeated one", tests[i].name, n)
		}
	}
}

// TestFastOpenServer sends data in the SYN: the connection exists before the SYN-ACK,
// which must not announce SMC then.
func TestFastOpenServer(t *testing.T) {
	b := newBed(t)
	b.addPhantom()
	b.sysctl(b.B, "ipv4/tcp_fastopen", "514") // as server, without a cookie
	opt := wire.AppendTCPOption(nil)
	l := b.bind(b.B, unix.AF_INET, "0.0.0.0", 4001)
	b.must(unix.SetsockoptInt(l, unix.IPPROTO_TCP, unix.TCP_FASTOPEN, 16))
	b.must(b.prog.MarkListen(l))
	b.must(unix.Listen(l, 8))
	capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
	b.sendTCP(5000, 4001, tcpFlagSYN, 1000, 0, slices.Concat(mss, opt), []byte("early data"))
	fd := b.accept(l)
	b.wantPeer("server", fd, PeerNoSMC)
	if got := b.read(fd); got != "early data" {
		t.Errorf("read %q", got)
	}
	// Real time: a SYN-ACK would be repeated by then.
	time.Sleep(1500 * time.Millisecond)
	answers := 0
	for _, s := range b.segments(capture) {
		if s.dst == 5000 {
			answers++
			if s.announces() != 0 {
				t.Errorf("the server announces: % x", s.options)
			}
		}
	}
	if answers == 0 {
		t.Error("no SYN-ACK captured")
	}
}

// TestFastOpenClient sends application data in the SYN of a marked socket.
func TestFastOpenClient(t *testing.T) {
	b := newBed(t)
	b.sysctl(b.A, "ipv4/tcp_fastopen", "3")
	b.sysctl(b.B, "ipv4/tcp_fastopen", "3")
	l := b.bind(b.B, unix.AF_INET, "0.0.0.0", 4001)
	b.must(unix.SetsockoptInt(l, unix.IPPROTO_TCP, unix.TCP_FASTOPEN, 16))
	b.must(b.prog.MarkListen(l))
	b.must(unix.Listen(l, 8))
	capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
	to := &unix.SockaddrInet4{Port: 4001, Addr: b.B.Links[0].IPv4.As4()}
	open := func(marked bool) conn {
		t.Helper()
		fd := b.socket(b.A, unix.AF_INET)
		if marked {
			b.must(b.prog.MarkConnect(fd))
		}
		b.must(unix.Sendto(fd, []byte("early data"), unix.MSG_FASTOPEN, to))
		c := conn{client: fd, clientPort: localPort(t, fd), serverPort: 4001, server: b.accept(l)}
		if got := b.read(c.server); got != "early data" {
			t.Errorf("read %q", got)
		}
		return c
	}
	cookie := open(false) // receives the cookie
	data := open(true)
	// The client gets data of the server only after the end of the handshake.
	b.exchange(data)
	b.wantPeer("client", data.client, PeerNoSMC)
	b.wantPeer("server", data.server, PeerNoSMC)
	segs := b.segments(capture)
	wantAnnounced(t, segs, "cookie request", cookie, false, false)
	wantAnnounced(t, segs, "data in the SYN", data, false, false)
	for _, s := range segs {
		if s.src == data.clientPort && s.syn && slices.Index(s.options, 34) < 0 {
			t.Errorf("the SYN has no Fast Open cookie: % x", s.options)
		}
	}
}

// attachForeign attaches another program to a cgroup, like a tool of somebody else. It
// asks for the header option callbacks of every socket, and uses n bytes of the header:
// of the SYN if fullsock is 1, of the SYN-ACK if it is 0, of none for other values.
func attachForeign(t testing.TB, cgroup string, fullsock, n int32) {
	t.Helper()
	reserve, write, flags, out := "reserve", "write", "flags", "out"
	insns := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R1, asm.R6, opsOp, asm.Word),
		asm.JEq.Imm(asm.R1, cbTCPConnect, flags),
		asm.JEq.Imm(asm.R1, cbTCPListen, flags),
		asm.LoadMem(asm.R2, asm.R6, opsFullSock, asm.Word),
		asm.JNE.Imm(asm.R2, fullsock, out),
		asm.LoadMem(asm.R2, asm.R6, opsTCPFlags, asm.Word),
		asm.And.Imm(asm.R2, tcpFlagSYN),
		asm.JEq.Imm(asm.R2, 0, out),
		asm.JEq.Imm(asm.R1, cbHdrOptLen, reserve),
		asm.JEq.Imm(asm.R1, cbWriteHdrOpt, write),
		asm.Ja.Label(out),
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol(flags),
		asm.Mov.Imm(asm.R2, cbFlagWriteHdrOpt),
		asm.FnSockOpsCbFlagsSet.Call(),
		asm.Ja.Label(out),
		asm.Mov.Reg(asm.R1, asm.R6).WithSymbol(reserve),
		asm.Mov.Imm(asm.R2, n),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnReserveHdrOpt.Call(),
		asm.Ja.Label(out),
		// It writes less than it has reserved. Other programs cannot use the rest.
		asm.Mov.Reg(asm.R2, asm.RFP).WithSymbol(write),
		asm.Add.Imm(asm.R2, -8),
		asm.StoreImm(asm.R2, 0, int64(binary.NativeEndian.Uint32([]byte{253, 4, 7, 7})), asm.Word),
		asm.Mov.Reg(asm.R1, asm.R6),
		asm.Mov.Imm(asm.R3, 4),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnStoreHdrOpt.Call(),
		asm.Mov.Imm(asm.R0, 1).WithSymbol(out),
		asm.Return(),
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "foreign", Type: ebpf.SockOps, AttachType: ebpf.AttachCGroupSockOps, License: "Apache-2.0", Instructions: insns})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	l, err := link.AttachCgroup(link.CgroupOptions{Path: cgroup, Attach: ebpf.AttachCGroupSockOps, Program: prog})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

// TestFullHeader leaves no room for the option on the SYN, or on the SYN-ACK. Then the
// server must not report that it announced SMC.
func TestFullHeader(t *testing.T) {
	for _, test := range []struct {
		name     string
		fullsock int32
		syn      bool
	}{{"SYN", 1, false}, {"SYN-ACK", 0, true}} {
		t.Run(test.name, func(t *testing.T) {
			b := newBed(t)
			attachForeign(t, privateCgroup(t), test.fullsock, 20)
			capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
			l := b.listener(unix.AF_INET, "0.0.0.0", 4001, true)
			c := b.dial(l, true)
			b.exchange(c)
			b.wantPeer("client", c.client, PeerNoSMC)
			b.wantPeer("server", c.server, PeerNoSMC)
			segs := b.segments(capture)
			wantAnnounced(t, segs, "full header", c, test.syn, false)
			full := 0
			for _, s := range segs {
				if s.syn && len(s.options) == 40 {
					full++
				}
			}
			if full == 0 {
				t.Error("the header was not full: the test shows nothing")
			}
			for _, h := range b.handshakes() {
				t.Errorf("connection %#x is still remembered", h.Cookie)
			}
		})
	}
}

// TestSavedSYN: if the application has asked for saved SYNs, it gets them. The agreement
// of both ends does not depend on this.
func TestSavedSYN(t *testing.T) {
	const full = 2 // saved with the header of the link layer
	for _, test := range []struct {
		name          string
		before, after int // the values before and after MarkListen
		want          int
	}{{"ours", 0, -1, 1}, {"the application's", full, -1, full}, {"turned off", 0, 0, 0}} {
		t.Run(test.name, func(t *testing.T) {
			b := newBed(t)
			l := b.bind(b.B, unix.AF_INET, "0.0.0.0", 4001)
			b.must(unix.SetsockoptInt(l, unix.IPPROTO_TCP, unix.TCP_SAVE_SYN, test.before))
			b.must(b.prog.MarkListen(l))
			b.must(unix.Listen(l, 8))
			if test.after >= 0 {
				b.must(unix.SetsockoptInt(l, unix.IPPROTO_TCP, unix.TCP_SAVE_SYN, test.after))
			}
			c := b.dial(l, true)
			b.wantPeer("client", c.client, PeerSMC)
			b.wantPeer("server", c.server, PeerSMC)
			got, err := unix.GetsockoptInt(l, unix.IPPROTO_TCP, unix.TCP_SAVE_SYN)
			if err != nil || got != test.want {
				t.Errorf("TCP_SAVE_SYN is %d, %v, want %d", got, err, test.want)
			}
		})
	}
}

// TestHalfOpen checks that a server reports PeerSMC if the program has noted that its SYN-ACK
// had the option, and never otherwise: the saved SYN alone does not show that.
func TestHalfOpen(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(b *bed, i uint32)
		want   State
	}{
		{"nothing", func(*bed, uint32) {}, PeerSMC},
		{"not noted", func(b *bed, i uint32) {
			b.must(b.prog.objs.handshakes.Put(i, [shakeSize]byte{}))
		}, PeerNoSMC},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBed(t)
			b.addPhantom()
			opt := wire.AppendTCPOption(nil)
			l := b.listener(unix.AF_INET, "0.0.0.0", 4001, true)
			capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
			b.sendTCP(5000, 4001, tcpFlagSYN, 1000, 0, slices.Concat(mss, opt), nil)
			noted := func(f func(i uint32)) error {
				for i, h := range b.handshakes() {
					if h.Fact == synAckSMC {
						f(i)
						return nil
					}
				}
				return unix.EAGAIN
			}
			b.must(netnstest.Until(ioTimeout, func() error { return noted(func(uint32) {}) }))
			var isn uint32
			for _, s := range b.segments(capture) {
				if s.syn && s.ack && s.dst == 5000 {
					isn = s.seq
				}
			}
			// Now: the kernel sends the SYN-ACK again each second, which is noted again.
			b.must(noted(func(i uint32) { test.change(b, i) }))
			b.sendTCP(5000, 4001, tcpFlagACK, 1001, isn+1, nil, nil)
			b.wantPeer("server", b.accept(l), test.want)
			if h := b.handshakes(); len(h) != 0 {
				t.Errorf("the handshake is still remembered: %v", h)
			}
		})
	}
}

// TestForeignCallbacks: another program asks for the header option callbacks of every
// socket. So the program is called for sockets without a mark too, also for a listener
// with the same port as a marked one.
func TestForeignCallbacks(t *testing.T) {
	b := newBed(t)
	attachForeign(t, privateCgroup(t), 2, 4) // asks for callbacks but uses no bytes
	marked := b.listener(unix.AF_INET, b.B.Addr(), 4001, true)
	b.must(b.B.Do(func() error {
		l, err := netlink.LinkByName(b.B.Links[0].Name)
		if err != nil {
			return err
		}
		addr, err := netlink.ParseAddr("10.77.0.50/24")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(l, addr)
	}))
	beside := b.listener(unix.AF_INET, "10.77.0.50", 4001, false)
	capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
	fd := b.socket(b.A, unix.AF_INET)
	b.must(b.prog.MarkConnect(fd))
	plain := b.connect(fd, beside, unix.AF_INET, "10.77.0.50")
	b.wantPeer("client of the unmarked listener", plain.client, PeerNoSMC)
	b.wantPeer("unmarked listener", plain.server, unmarked)
	unmarkedClient := b.dial(marked, false)
	b.wantPeer("server", unmarkedClient.server, PeerNoSMC)
	both := b.dial(marked, true)
	b.wantPeer("server", both.server, PeerSMC)
	segs := b.segments(capture)
	wantAnnounced(t, segs, "unmarked listener", plain, true, false)
	wantAnnounced(t, segs, "unmarked client", unmarkedClient, false, false)
	wantAnnounced(t, segs, "both marked", both, true, true)
}

// TestReusePort: a listener with a mark and one without share an address. Each answers
// according to its own mark.
func TestReusePort(t *testing.T) {
	b := newBed(t)
	var listeners []int
	for _, marked := range []bool{true, false} {
		fd := b.socket(b.B, unix.AF_INET)
		b.must(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
		b.must(unix.Bind(fd, &unix.SockaddrInet4{Port: 4001}))
		if marked {
			b.must(b.prog.MarkListen(fd))
		}
		b.must(unix.Listen(fd, 64))
		b.must(unix.SetNonblock(fd, true))
		listeners = append(listeners, fd)
	}
	capture := b.A.StartCapture(t, netnstest.CaptureOptions{})
	var conns [2][]conn
	for range 40 {
		fd := b.socket(b.A, unix.AF_INET)
		b.must(b.prog.MarkConnect(fd))
		b.must(connectTo(fd, &unix.SockaddrInet4{Port: 4001, Addr: b.B.Links[0].IPv4.As4()}))
		c := conn{client: fd, clientPort: localPort(t, fd), serverPort: 4001}
		b.must(netnstest.Until(ioTimeout, func() error {
			for i, l := range listeners {
				s, _, err := unix.Accept4(l, unix.SOCK_CLOEXEC)
				if err == nil {
					b.own(s)
					c.server = s
					conns[i] = append(conns[i], c)
					return nil
				}
			}
			return unix.EAGAIN
		}))
	}
	if len(conns[0]) == 0 || len(conns[1]) == 0 {
		t.Fatalf("the listeners got %d and %d connections", len(conns[0]), len(conns[1]))
	}
	segs := b.segments(capture)
	for _, c := range conns[0] {
		b.wantPeer("client of the marked", c.client, PeerSMC)
		b.wantPeer("marked", c.server, PeerSMC)
		wantAnnounced(t, segs, "marked", c, true, true)
	}
	for _, c := range conns[1] {
		b.wantPeer("client of the unmarked", c.client, PeerNoSMC)
		b.wantPeer("unmarked", c.server, unmarked)
		wantAnnounced(t, segs, "unmarked", c, true, false)
	}
}
