// SPDX-License-Identifier: Apache-2.0

package smctools_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/smc"
	"smcr/stats"

	"github.com/google/go-cmp/cmp"
)

// originalEnv names the folder with the programs smcr, smcd, smcss and smc_pnet of
// smc-tools 1.8.5.
const originalEnv = "SMC_TOOLS"

// TestOriginal compares the programs with those of smc-tools, on random states of a
// stack. Both ask the stack at the same socket.
func TestOriginal(t *testing.T) {
	dir := os.Getenv(originalEnv)
	if dir == "" {
		t.Skipf("needs the programs of smc-tools 1.8.5: build them and set %s to their folder", originalEnv)
	}
	bin, tmp := build(t), t.TempDir()
	shim := filepath.Join(tmp, "shim.so")
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", shim, "testdata/shim.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	inNamespace(t, func() {
		for seed := range uint64(25) {
			compareWithOriginal(t, bin, dir, shim, tmp, seed)
		}
	})
}

var originalLines = []string{
	"smcr device", "smcr -d device", "smcr device netdev eth0", "smcr device ibdev dev1", "smcd device", "smcr info",
	"smcr linkgroup", "smcr -d linkgroup", "smcr linkgroup 1%s", "smcr linkgroup link-show", "smcr -dd linkgroup link-show",
	"smcr linkgroup link-show netdev eth0", "smcd linkgroup", "smcd -d linkgroup", "smcd linkgroup 1%s",
	"smcr -ad stats", "smcd -a stats", "smcr -a stats json", "smcr stats reset", "smcr -d stats", "smcd stats json",
	"smcr ueid", "smcr ueid add A.B", "smcr ueid add C-%s", "smcr ueid del A.B", "smcd seid", "smcd seid disable", "smcd seid enable",
	"smcss", "smcss -a", "smcss -ad", "smcss -W", "smcss -adR", "smcss -aD", "smcss -l",
	"smc_pnet", "smc_pnet -a X%s -I eth0", "smc_pnet -d X%s", "smc_pnet -f", "smc_pnet -d Y",
}

// compareWithOriginal compares both on the same state. Each has a copy of its own.
func compareWithOriginal(t *testing.T, bin, dir, shim, tmp string, seed uint64) {
	type side struct {
		bin, socket string
		env         []string
	}
	sides := []*side{{bin: dir, env: []string{"LD_PRELOAD=" + shim, "LD_LIBRARY_PATH=" + dir}}, {bin: bin}}
	for i, s := range sides {
		s.socket = filepath.Join(tmp, fmt.Sprintf("%d-%d.sock", seed, i))
		s.env = append(s.env, "SMCR_SHIM="+s.socket, "SMCR_BACKEND=unix:"+s.socket,
			"SMCR_STATS_CACHE="+filepath.Join(tmp, fmt.Sprintf("%d-%d.cache", seed, i)))
		fake := nltest.NewFake(randomState(rand.New(rand.NewPCG(seed, 1))))
		fake.SetNetDevs("eth0", "peer0")
		defer serveLikeKernel(t, s.socket, fake)()
	}
	for _, line := range originalLines {
		if strings.Contains(line, "%s") {
			line = fmt.Sprintf(line, fmt.Sprint(seed%10))
		}
		var printed [2]string
		for i, s := range sides {
			out, errOut, status := execute(t, s.bin, strings.Fields(line), s.env...)
			printed[i] = fmt.Sprintf("%s%sstatus %d\n", out, errOut, status)
		}
		if diff := cmp.Diff(printed[0], printed[1]); diff != "" {
			t.Errorf("state %d: %s (-smc-tools +smcr):\n%s", seed, line, diff)
		}
	}
}

// serveLikeKernel serves a control with one message in each datagram: the library of
// smc-tools ignores a message that follows an answer in the same datagram.
func serveLikeKernel(t *testing.T, path string, ctl nl.Control) (stop func()) {
	t.Helper()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	server := nl.NewServer(ctl, nl.ServerConfig{})
	var wg sync.WaitGroup
	serve := func(conn *net.UnixConn) {
		defer conn.Close()
		b := make([]byte, 64<<10)
		for {
			n, err := conn.Read(b)
			if err != nil || n == 0 {
				return // the program has ended
			}
			err = server.Handle(t.Context(), nl.Peer{}, b[:n], func(datagram []byte) error {
				for _, m := range split(t, datagram) {
					if _, err := conn.Write(m); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return
			}
		}
	}
	wg.Go(func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			wg.Go(func() { serve(conn) })
		}
	})
	return func() {
		l.Close()
		wg.Wait()
		server.Close()
	}
}

// randomState returns a state without the cases in which smc-tools is wrong
// (docs/smc-tools.md).
func randomState(r *rand.Rand) nltest.State {
	flip := func() bool { return r.IntN(2) == 0 }
	number := func() uint64 {
		n := r.Uint64N(9) + 1
		for range r.IntN(14) {
			n = n*10 + r.Uint64N(10)
		}
		if flip() {
			return 0
		}
		return n
	}
	word := func(max int) string {
		b := make([]byte, r.IntN(max)+1)
		for i := range b {
			b[i] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"[r.IntN(36)]
		}
		return string(b)
	}
	gid := func() (g smc.GID) {
		for i := range g {
			g[i] = byte(r.Uint32())
		}
		return g
	}
	v2 := func() *nl.V2Common {
		if flip() {
			return nil
		}
		return &nl.V2Common{Version: 2, Release: uint8(r.IntN(3)), OS: smc.OS(r.IntN(5)), EID: word(32), PeerHost: word(32)}
	}
	s := nltest.State{
		SysInfo: nl.SysInfo{Version: uint8(r.IntN(2) + 1), Release: uint8(r.IntN(3)), ISMv2: flip(), SMCRv2: flip(), LocalHost: word(32)},
		UEIDs:   []string{},
	}
	if flip() {
		s.SysInfo.SEID = word(32)
		s.SEID = nl.SEID{Value: s.SysInfo.SEID, Enabled: flip()}
	}
	for range r.IntN(3) {
		s.UEIDs = append(s.UEIDs, word(32))
	}
	for i := range r.IntN(4) {
		g := nl.LinkGroup{
			ID: nl.LinkGroupID(i+1) << 8, Role: smc.Role(r.IntN(2)), Type: smc.GroupType(r.IntN(6)), PNETID: word(16),
			VLAN: uint16(r.IntN(256)), Conns: uint32(r.IntN(300)), Sndbuf: number(), RMB: number(), V2: v2(),
		}
		if g.V2 != nil {
			g.V2R = &nl.V2R{Direct: flip()}
		}
		s.LinkGroups = append(s.LinkGroups, g)
		for j := range r.IntN(3) + 1 {
			s.Links = append(s.Links, nl.Link{
				LinkGroup: g.ID, Role: g.Role, Type: g.Type, ID: uint8(j + 1), IBDev: "dev" + word(9), IBPort: uint8(r.IntN(2) + 1),
				GID: gid(), PeerGID: gid(), Conns: uint32(r.IntN(300)), NetDev: uint32(r.IntN(2) * 3),
				UID: gidPart(gid()), PeerUID: gidPart(gid()), State: smc.LinkState(r.IntN(5)),
			})
		}
		s.LinkGroupsD = append(s.LinkGroupsD, nl.LinkGroupD{
			ID: nl.LinkGroupID(i + 1), VLAN: uint16(r.IntN(256)), Conns: uint32(r.IntN(300)), PNETID: word(16), Sndbuf: number(), DMB: number(), V2: v2(),
		})
	}
	for i := range r.IntN(3) {
		pci := &nl.PCI{FID: r.Uint32N(1 << 20), CHID: uint16(r.Uint32()), Vendor: 1, Device: []uint16{0x1004, 0x1016, 0x101e, 0x1234}[r.IntN(4)], ID: fmt.Sprintf("%04x:00:00.0", r.IntN(1<<16))}
		d := nl.Device{Name: fmt.Sprintf("dev%d%s", i, strings.Repeat("x", r.IntN(9))), UseCount: 1, Critical: flip(), PCI: pci}
		for range r.IntN(2) + 1 {
			d.Ports = append(d.Ports, nl.Port{Valid: r.IntN(4) > 0, Active: flip(), PNETUser: flip(), PNETID: word(16), NetDev: 3, Links: uint32(r.IntN(9))})
		}
		s.Devices = append(s.Devices, d)
		ism := *pci
		ism.Device = 0x04ed
		s.DevicesD = append(s.DevicesD, nl.Device{UseCount: uint32(r.IntN(5) + 1), Critical: flip(), PCI: &ism, Ports: []nl.Port{{PNETUser: flip(), PNETID: word(16), Valid: true}}})
	}
	for _, tech := range []*stats.Tech{&s.Stats.SMCR, &s.Stats.SMCD} {
		for _, h := range []*stats.Histogram{&tech.RXBufSizes, &tech.TXBufSizes, &tech.RXSizes, &tech.TXSizes} {
			for i := range h {
				h[i] = number()
			}
		}
		for _, b := range []*stats.Buffers{&tech.TXBufs, &tech.RXBufs} {
			*b = stats.Buffers{SmallPeer: number(), Small: number(), FullPeer: number(), Full: number(), Reuse: number(), Alloc: number(), Downgrade: number()}
		}
		tech.ClientV1, tech.ClientV2, tech.ServerV1, tech.ServerV2 = number(), number(), number(), number()
		tech.Sendpage, tech.Cork, tech.NoDelay, tech.Urgent = number(), number(), number(), number()
		tech.RXBytes, tech.TXBytes, tech.RXCalls, tech.TXCalls, tech.RXUsage, tech.TXUsage = number(), number(), number(), number(), number(), number()
	}
	s.Stats.ClientHandshakeErrors, s.Stats.ServerHandshakeErrors = number(), number()
	if flip() {
		s.Fallbacks = nl.Fallbacks{ClientTotal: number(), ServerTotal: number()}
		codes := []uint32{0x01010000, 0x02010000, 0x02020000, 0x03000000, 0x03010000, 0x03020000, 0x03030000, 0x03030001, 0x03030002, 0x03030003,
			0x03030004, 0x03030005, 0x03030006, 0x03030007, 0x03030008, 0x03040000, 0x03050000, 0x03060000, 0x03070000, 0x03080000, 0x03090000,
			0x030a0000, 0x030b0000, 0x030c0000, 0x030d0000, 0x030e0000, 0x030f0000, 0x04000000, 0x05000000, 0x09990000, 0x09990001, 0x09990002}
		for _, side := range []smc.Role{smc.Server, smc.Client} {
			for _, i := range r.Perm(len(codes))[:r.IntN(len(codes)+1)] {
				s.Fallbacks.Reasons = append(s.Fallbacks.Reasons, nl.Fallback{Side: side, Reason: codes[i], Count: r.Uint64N(1 << 16)})
			}
		}
	}
	for i := range r.IntN(8) {
		v6 := flip()
		addr := func() netip.AddrPort {
			a := netip.AddrFrom4(gidPart(gid()))
			if v6 {
				a = netip.AddrFrom16(gid())
			}
			return netip.AddrPortFrom(a, uint16(r.Uint32()))
		}
		cursor := func() nl.Cursor { return nl.Cursor{Wrap: uint16(r.Uint32()), Count: r.Uint32()} }
		c := nl.Connection{
			State: smc.ConnState([]uint8{1, 1, 1, 2, 7, 10, 20, 21, 22, 23, 24, 25, 26, 27, 99}[r.IntN(15)]), Mode: nl.Mode(r.IntN(3)), Shutdown: nl.Shutdown(r.IntN(4)),
			Local: addr(), Remote: addr(), NetDev: uint32(r.IntN(1 << 16)), UID: r.Uint32(), Inode: uint64(i) + number(),
		}
		switch c.Mode {
		case nl.ModeTCP:
			c.Fallback = nl.ConnFallback{Reason: r.Uint32(), Peer: uint32(r.IntN(2)) * r.Uint32()}
		case nl.ModeSMCR:
			c.Link = &nl.ConnLink{LinkID: uint8(r.Uint32()), IBDev: "dev" + word(20), IBPort: uint8(r.IntN(3)), GID: gid(), PeerGID: gid(), Role: smc.Role(r.IntN(2))}
		case nl.ModeSMCD:
			c.DMB = &nl.ConnDMB{LinkID: r.Uint32(), PeerGID: r.Uint64(), GID: r.Uint64(), Token: r.Uint64(), PeerToken: r.Uint64()}
		}
		if c.Mode != nl.ModeTCP {
			c.Info = &nl.ConnInfo{
				Token: r.Uint32(), Sndbuf: r.Uint32(), RMBE: r.Uint32(), PeerRMBE: r.Uint32(),
				RXProd: cursor(), RXCons: cursor(), TXProd: cursor(), TXCons: cursor(),
				RXProdFlags: uint8(r.Uint32()), RXStateFlags: uint8(r.Uint32()), TXProdFlags: uint8(r.Uint32()), TXStateFlags: uint8(r.Uint32()),
				TXPrep: cursor(), TXSent: cursor(), TXFin: cursor(),
			}
		}
		s.Connections = append(s.Connections, c)
	}
	return s
}

func gidPart(g smc.GID) [4]byte { return [4]byte(g[:4]) }
