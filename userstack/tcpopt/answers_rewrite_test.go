// SPDX-License-Identifier: Apache-2.0

package tcpopt

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// rewritten is an address that no other test uses: the program of TestNotHereConnectProgram sees
// each connect() of the machine.
const rewritten = "10.99.77.1"

// word returns an IPv4 address as programs of the kernel see it.
func word(a string) int64 {
	b := netip.MustParseAddr(a).As4()
	return int64(int32(binary.NativeEndian.Uint32(b[:])))
}

// load loads a program, or skips the test if the kernel does not let it.
func (b *bed) load(spec *ebpf.ProgramSpec) *ebpf.Program {
	b.Helper()
	spec.License = "GPL"
	p, err := ebpf.NewProgram(spec)
	if err != nil {
		b.Skipf("the kernel refuses the program: %v", err)
	}
	b.Cleanup(func() { _ = p.Close() })
	return p
}

// TestNotHereConnectProgram: a program of the cgroup leads connect() to another host, as service
// meshes and replacements of kube-proxy do. The gates stay closed.
func TestNotHereConnectProgram(t *testing.T) {
	b := newBed(t)
	b.run(b.A, "ip", "addr", "replace", rewritten+"/32", "dev", "lo")
	const userIP4 = 4 // struct bpf_sock_addr
	p := b.load(&ebpf.ProgramSpec{Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, Instructions: asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, userIP4, asm.Word),
		asm.LoadImm(asm.R3, word(rewritten)&0xffffffff, asm.DWord),
		asm.JNE.Reg(asm.R2, asm.R3, "out"),
		asm.LoadImm(asm.R2, word(b.B.Addr())&0xffffffff, asm.DWord),
		asm.StoreMem(asm.R1, userIP4, asm.R2, asm.Word),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("out"),
		asm.Return(),
	}})
	root, err := openCgroup("")
	if err != nil {
		t.Skip(err)
	}
	defer root.Close()
	a, err := link.AttachCgroup(link.CgroupOptions{Path: fmt.Sprint("/proc/self/fd/", root.fd()), Attach: ebpf.AttachCGroupInet4Connect, Program: p})
	if err != nil {
		t.Skipf("the kernel refuses to attach the program: %v", err)
	}
	defer a.Close()
	l := b.gatedListener(b.B, unix.AF_INET, "0.0.0.0", port)
	fd := b.socket(b.A, unix.AF_INET)
	b.must(b.prog.GateConnect(fd))
	b.notHere(fd, l, unix.AF_INET, rewritten)
	sa, err := unix.Getpeername(fd)
	if a, ok := sa.(*unix.SockaddrInet4); err != nil || !ok || netip.AddrFrom4(a.Addr).String() != b.B.Addr() {
		t.Errorf("the socket is connected to %v, %v: the test shows nothing", sa, err)
	}
}

// TestNotHereSegments: a route for an address of the host puts packets into others (SRv6), as which
// they go to another host that has the same address. The gates stay closed.
func TestNotHereSegments(t *testing.T) {
	for _, mode := range []string{"encap", "inline"} {
		t.Run(mode, func(t *testing.T) {
			b := newBed(t)
			b.ownAddress(b.A, b.B)
			dev := b.B.Links[0].Name
			for _, name := range []string{"all", dev} {
				b.run(b.B, "sysctl", "-qw", "net.ipv6.conf."+name+".seg6_enabled=1")
			}
			b.run(b.A, "ip", "-6", "rule", "add", "pref", "100", "lookup", "local")
			b.run(b.A, "ip", "-6", "rule", "add", "pref", "50", "to", own6, "iif", "lo", "lookup", "77")
			b.run(b.A, "ip", "-6", "rule", "del", "pref", "0")
			b.run(b.A, "ip", "-6", "route", "add", own6+"/128", "encap", "seg6", "mode", mode, "segs", b.B.Addr6(), "dev", b.A.Links[0].Name, "table", "77")
			l := b.gatedListener(b.B, unix.AF_INET6, "::", port)
			// Its own address would be that of the other host, too.
			fd := b.bind(b.A, unix.AF_INET6, b.A.Addr6(), 0)
			b.must(b.prog.GateConnect(fd))
			b.notHere(fd, l, unix.AF_INET6, own6)
		})
	}
}

// TestHereElsewhere: something leads a connection to a listening socket with another port or
// address, but of the same namespace, which has then the address that the client has named. Both
// ends agree, and what the client sends reaches this socket.
func TestHereElsewhere(t *testing.T) {
	const other = 4002
	transparent := func(b *bed) int {
		l := b.bind(b.A, unix.AF_INET, "127.0.0.1", other)
		b.must(unix.SetsockoptInt(l, unix.SOL_IP, unix.IP_TRANSPARENT, 1))
		b.must(b.prog.GateListen(l, 0))
		b.must(unix.Listen(l, 8))
		return l
	}
	for name, lead := range map[string]func(b *bed) int{
		"TPROXY": func(b *bed) int {
			b.run(b.A, "nft", "add table ip t; add chain ip t p { type filter hook prerouting priority mangle; }; add rule ip t p ip daddr "+own+" tcp dport 4001 tproxy to 127.0.0.1:4002 accept")
			return transparent(b)
		},
		"a program for the choice of sockets": func(b *bed) int {
			l := transparent(b)
			m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.SockMap, KeySize: 4, ValueSize: 8, MaxEntries: 1})
			if err != nil {
				b.Skip(err)
			}
			b.Cleanup(func() { _ = m.Close() })
			b.must(m.Put(uint32(0), uint64(l)))
			const localPort = 60 // struct bpf_sk_lookup
			p := b.load(&ebpf.ProgramSpec{Type: ebpf.SkLookup, AttachType: ebpf.AttachSkLookup, Instructions: asm.Instructions{
				asm.Mov.Reg(asm.R6, asm.R1),
				asm.LoadMem(asm.R2, asm.R1, localPort, asm.Word),
				asm.JNE.Imm(asm.R2, port, "out"),
				asm.StoreImm(asm.R10, -4, 0, asm.Word),
				asm.LoadMapPtr(asm.R1, m.FD()),
				asm.Mov.Reg(asm.R2, asm.R10),
				asm.Add.Imm(asm.R2, -4),
				asm.FnMapLookupElem.Call(),
				asm.JEq.Imm(asm.R0, 0, "out"),
				asm.Mov.Reg(asm.R7, asm.R0),
				asm.Mov.Reg(asm.R1, asm.R6),
				asm.Mov.Reg(asm.R2, asm.R0),
				asm.Mov.Imm(asm.R3, 0),
				asm.FnSkAssign.Call(),
				asm.Mov.Reg(asm.R1, asm.R7),
				asm.FnSkRelease.Call(),
				asm.Mov.Imm(asm.R0, 1).WithSymbol("out"),
				asm.Return(),
			}})
			b.must(b.A.Do(func() error {
				ns, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err != nil {
					return err
				}
				defer unix.Close(ns)
				a, err := link.AttachNetNs(ns, p)
				if err == nil {
					b.Cleanup(func() { _ = a.Close() })
				}
				return err
			}))
			return l
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t)
			b.ownAddress(b.A)
			l := lead(b)
			fd := b.socket(b.A, unix.AF_INET)
			b.must(b.prog.GateConnect(fd))
			if err := connectTo(fd, sockaddr(unix.AF_INET, addrPort(own, port))); err != nil {
				t.Skipf("connections are not led elsewhere here: %v", err)
			}
			server := b.accept(l)
			// A listening socket is known by its own port, so its answer has no option, or
			// both ends have a gate.
			var verdicts []error
			for who, fd := range map[string]int{"client": fd, "server": server} {
				g, err := b.prog.Gate(fd)
				b.must(err)
				if g == nil {
					b.wantPeer(who, fd, PeerNoSMC)
					verdicts = append(verdicts, nil)
					continue
				}
				verdicts = append(verdicts, g.OpenHere(fd))
			}
			if (verdicts[0] == nil) != (verdicts[1] == nil) {
				t.Fatalf("the ends disagree: %v", verdicts)
			}
			if verdicts[0] == nil {
				b.exchange(conn{client: fd, server: server})
			}
		})
	}
}
