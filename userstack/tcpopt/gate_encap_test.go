// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// The addresses behind a route that encapsulates, of host B.
const (
	behind4 = "10.99.0.2"
	behind6 = "fd99::2"
)

// ip runs ip(8) on a host. It returns what it says if that fails.
func (b *bed) ip(h *netnstest.Host, args ...string) string {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if out, err := h.Output(ctx, "ip", args...); err != nil {
		return strings.TrimSpace(out + " " + err.Error())
	}
	return ""
}

// unroute removes the routes to the addresses behind, so that those that follow take effect.
func (b *bed) unroute() {
	b.Helper()
	b.ip(b.A, "route", "del", behind4+"/32")
	b.ip(b.A, "-6", "route", "del", behind6+"/128")
}

// byRoute encapsulates with a route of ip(8).
func byRoute(args ...string) func(b *bed) (why string) {
	return func(b *bed) string {
		b.Helper()
		line := append([]string{"route", "add"}, args...)
		if strings.Contains(args[0], ":") {
			line = append([]string{"-6"}, line...)
		}
		b.unroute()
		for i, a := range line {
			line[i] = strings.NewReplacer("B4", b.B.Addr(), "B6", b.B.Addr6(), "DEV", b.A.Links[0].Name).Replace(a)
		}
		return b.ip(b.A, line...)
	}
}

// byProgram encapsulates with an eBPF program of a route, in a packet of another protocol.
func byProgram(proto byte) func(b *bed) (why string) {
	return func(b *bed) string {
		b.Helper()
		src, dst := b.A.Links[0].IPv4.As4(), b.B.Links[0].IPv4.As4()
		head := []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, proto, 0, 0}
		head = append(append(head, src[:]...), dst[:]...)
		insns := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
		for i := 0; i < len(head); i += 4 {
			w := int64(int32(nl.NativeEndian().Uint32(head[i:])))
			insns = append(insns, asm.StoreImm(asm.RFP, int16(i-24), w, asm.Word))
		}
		insns = append(insns,
			asm.LoadMem(asm.R1, asm.R6, skbLen, asm.Word),
			asm.Add.Imm(asm.R1, int32(len(head))),
			asm.HostTo(asm.BE, asm.R1, asm.Half),
			asm.StoreMem(asm.RFP, -24+2, asm.R1, asm.Half),
			asm.Mov.Reg(asm.R1, asm.R6),
			asm.Mov.Imm(asm.R2, 2), // BPF_LWT_ENCAP_IP
			asm.Mov.Reg(asm.R3, asm.RFP),
			asm.Add.Imm(asm.R3, -24),
			asm.Mov.Imm(asm.R4, int32(len(head))),
			asm.FnLwtPushEncap.Call(),
			asm.Mov.Imm(asm.R0, 128), // BPF_LWT_REROUTE
			asm.Return(),
		)
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.LWTXmit, License: "Apache-2.0", Instructions: insns})
		if err != nil {
			return err.Error()
		}
		b.Cleanup(func() { prog.Close() })
		b.unroute()
		if err := b.A.Do(func() error {
			l, err := netlink.LinkByName(b.A.Links[0].Name)
			if err != nil {
				return err
			}
			encap := &netlink.BpfEncap{}
			if err := encap.SetProg(nl.LWT_BPF_XMIT, prog.FD(), "smcr_test"); err != nil {
				return err
			}
			to := netip.MustParseAddr(behind4)
			return netlink.RouteReplace(&netlink.Route{
				Dst: &net.IPNet{IP: to.AsSlice(), Mask: net.CIDRMask(32, 32)}, Gw: b.B.Links[0].IPv4.AsSlice(),
				LinkIndex: l.Attrs().Index, Encap: encap,
			})
		}); err != nil {
			return err.Error()
		}
		return ""
	}
}

// protocolOf returns the protocol in the IP header of the frame of a capture that contains data.
func protocolOf(capture []byte, data string) (proto byte, ok bool) {
	for b := capture[24:]; len(b) >= 16; {
		n := 16 + int(nl.NativeEndian().Uint32(b[8:]))
		if len(b) < n {
			break
		}
		frame := b[16:n]
		b = b[n:]
		switch {
		case !bytes.Contains(frame, []byte(data)):
		case binary.BigEndian.Uint16(frame[12:]) == unix.ETH_P_IP:
			return frame[14+ip4Protocol], true
		case binary.BigEndian.Uint16(frame[12:]) == unix.ETH_P_IPV6:
			return frame[14+ip6NextHeader], true
		default:
			return 0, true
		}
	}
	return 0, false
}

// TestGateEncapsulated: a route that puts the segments of a gated socket into other packets does not
// take them past the gate. What the stack sends passes where the program knows the packets.
func TestGateEncapsulated(t *testing.T) {
	for name, test := range map[string]struct {
		to     string
		encap  func(b *bed) (why string)
		passes bool // what the stack sends
	}{
		"seg6":            {behind6, byRoute(behind6+"/128", "encap", "seg6", "mode", "encap", "segs", "B6", "dev", "DEV"), true},
		"seg6, two":       {behind6, byRoute(behind6+"/128", "encap", "seg6", "mode", "encap", "segs", "B6,fd99::77", "dev", "DEV"), true},
		"seg6, reduced":   {behind6, byRoute(behind6+"/128", "encap", "seg6", "mode", "encap.red", "segs", "B6", "dev", "DEV"), true},
		"seg6 inline":     {behind6, byRoute(behind6+"/128", "encap", "seg6", "mode", "inline", "segs", "B6", "dev", "DEV"), true},
		"seg6 of IPv4":    {behind4, byRoute(behind4+"/32", "encap", "seg6", "mode", "encap", "segs", "B6", "dev", "DEV"), true},
		"rpl":             {behind6, byRoute(behind6+"/128", "encap", "rpl", "segs", "B6", "dev", "DEV"), true},
		"mpls":            {behind4, byRoute(behind4+"/32", "encap", "mpls", "100", "via", "inet", "B4"), false},
		"ioam6":           {behind6, byRoute(behind6+"/128", "encap", "ioam6", "mode", "inline", "trace", "prealloc", "type", "0x800000", "ns", "1", "size", "12", "dev", "DEV"), true},
		"program, IPIP":   {behind4, byProgram(unix.IPPROTO_IPIP), true},
		"program, GRE":    {behind4, byProgram(unix.IPPROTO_GRE), false},
		"program, nobody": {behind4, byProgram(253), false},
	} {
		t.Run(name, func(t *testing.T) {
			switch name {
			case "seg6, two", "seg6, reduced", "program, nobody":
				if testing.Short() {
					t.Skip("a neighbour of what the short form has")
				}
			}
			netnstest.Require(t, "ip")
			b := newBed(t)
			family := unix.AF_INET
			b.run(b.B, "ip", "addr", "add", behind4+"/32", "dev", "lo")
			b.run(b.B, "ip", "addr", "add", behind6+"/128", "dev", "lo", "nodad")
			b.run(b.A, "ip", "route", "add", behind4+"/32", "via", b.B.Addr())
			b.run(b.A, "ip", "-6", "route", "add", behind6+"/128", "via", b.B.Addr6())
			if test.to == behind6 {
				family = unix.AF_INET6
			}
			l := b.listener(family, map[int]string{unix.AF_INET: "0.0.0.0", unix.AF_INET6: "::"}[family], 0, true)
			fd := b.socket(b.A, family)
			b.must(b.prog.GateConnect(fd))
			c := b.connect(fd, l, family, test.to)
			g := b.gated(c, c.client, c.server)
			g.must(unix.SetsockoptInt(g.end, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)) // no byte waits for an answer
			g.send("first", false)
			g.expect("first")
			plain := b.connect(b.socket(b.A, family), l, family, test.to)
			if why := test.encap(b); why != "" {
				t.Skipf("this kernel has no such route: %s", why)
			}
			capture := b.B.StartCapture(t, netnstest.CaptureOptions{})
			_, _ = unix.SendmsgN(plain.client, []byte("plain"), nil, nil, unix.MSG_NOSIGNAL)
			g.send("proposal", false)
			g.write(foreign)
			time.Sleep(3 * quiet)
			if _, err := capture.Stop(); err != nil {
				t.Fatal(err)
			}
			packets, err := os.ReadFile(capture.File)
			if err != nil {
				t.Fatal(err)
			}
			switch proto, ok := protocolOf(packets, "plain"); {
			case !ok:
				t.Skip("packets by this route do not arrive in this kernel")
			case proto == unix.IPPROTO_TCP:
				t.Error("the route does not encapsulate: the test shows nothing")
			}
			if bytes.Contains(packets, []byte(foreign)) {
				t.Errorf("the gate has let %q pass", foreign)
			}
			if bytes.Contains(packets, []byte("proposal")) != test.passes {
				t.Errorf("what the stack sends: want that it arrives: %v", test.passes)
			}
		})
	}
}
