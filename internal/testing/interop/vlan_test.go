// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"smcr/rdmaverbs/softroce/header"
)

// onVLAN adds a VLAN netdev on the first netdev of each side, and returns the sides with
// these netdevs.
func onVLAN(t *testing.T, kernel, user *side, id uint16) (k, u *side) {
	t.Helper()
	kernel.run(t, "modprobe", "8021q")
	var sides [2]*side
	for i, s := range []*side{kernel, user} {
		x := *s
		x.addr = fmt.Sprintf("10.8.%d.%d", id%256, i+1)
		lower := []string{"k0", "u0"}[i]
		name := fmt.Sprintf("%s.%d", lower, id)
		s.run(t, "ip", "link", "add", "link", lower, "name", name, "type", "vlan", "id", fmt.Sprint(id))
		s.run(t, "ip", "addr", "add", x.addr+"/24", "dev", name)
		s.run(t, "ip", "link", "set", name, "up")
		// Both have one MAC, so the VLAN alone tells their link groups and packets apart.
		if mac, want := s.mac(t, name), s.mac(t, lower); mac != want {
			t.Fatalf("%s: %s has MAC %s, want %s as %s", s.backend, name, mac, want, lower)
		}
		sides[i] = &x
	}
	return sides[0], sides[1]
}

// mac returns the address of a netdev of this side. It asks ip, because /sys has the netdevs of the namespace in which it
// was mounted, which is that of the kernel's side for both.
func (s *side) mac(t *testing.T, netdev string) string {
	t.Helper()
	var links []struct {
		Address string `json:"address"`
	}
	out := s.run(t, "ip", "-j", "link", "show", "dev", netdev)
	if err := json.Unmarshal([]byte(out), &links); err != nil || len(links) != 1 {
		t.Fatalf("%s: %s: %v: %s", s.backend, netdev, err, out)
	}
	return links[0].Address
}

// roceFlow has the sender and the receiver of RoCE packets, and their VLAN.
type roceFlow struct {
	vlan     uint16 // 0 means without a tag
	from, to string
}

// roceFlows counts the RoCEv2 packets over IPv4 in a capture of whole frames.
func roceFlows(t *testing.T, file string) map[roceFlow]int {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	flows := map[roceFlow]int{}
	for b = b[pcapHeader:]; len(b) >= pcapRecord; {
		n := int(binary.LittleEndian.Uint32(b[8:]))
		if n > len(b)-pcapRecord {
			t.Fatalf("%s: record of %d bytes, %d are left", file, n, len(b)-pcapRecord)
		}
		packet := b[pcapRecord : pcapRecord+n]
		b = b[pcapRecord+n:]
		eth, rest, err := header.ParseEthernet(packet)
		if err != nil || eth.Type() != header.EtherTypeIPv4 || len(rest) < 20+8 {
			continue
		}
		ip, f := header.IPv4(rest), roceFlow{vlan: eth.VID()}
		if ip.Protocol() != 17 || len(rest) < ip.HeaderLen()+8 || binary.BigEndian.Uint16(rest[ip.HeaderLen()+2:]) != 4791 {
			continue
		}
		f.from, f.to = ip.Src().String(), ip.Dst().String()
		flows[f]++
	}
	return flows
}

// TestVLAN makes connections over VLANs of one Ethernet: each VLAN has separate link
// groups (RFC 7609, section 2.2), whose RoCE frames have its tag (section 5.1). The
// kernel has one soft-RoCE device, on the netdev below.
func TestVLAN(t *testing.T) {
	t.Parallel()
	kernel, user := newBed(t, 1)
	stop := captureAll(t, kernel, 1)
	var want []uint16
	used := map[roceFlow]bool{}
	port := uint16(7200)
	talk := func(t *testing.T, id uint16, kernel, user *side) {
		for _, d := range directions(kernel, user) {
			port++
			t.Run(d.name, func(t *testing.T) {
				at := netip.AddrPortFrom(netip.MustParseAddr(d.server.addr), port)
				end := d.server.start(t, "listening", "serve", at.String())
				c := count(t, d.client, d.server)
				sizes := []int{1, 1000, 1<<16 + 1, 1 << 20}
				for _, size := range sizes {
					d.client.connect(t, "echo", at, "-bytes", fmt.Sprint(size))
				}
				c.want(t, len(sizes))
				end()
				used[roceFlow{id, d.client.addr, d.server.addr}] = true
			})
		}
		want = append(want, id)
		for _, s := range []*side{kernel, user} {
			for _, role := range []string{"CLNT", "SERV"} {
				var got, ids []uint16
				for _, g := range query[linkGroup](t, s, "linkgroup", "list") {
					if g.Role == role {
						got = append(got, g.VLAN)
					}
				}
				for _, id := range want {
					if s.backend == "kernel" {
						id &= 0xff // the kernel reports only these bits
					}
					ids = append(ids, id)
				}
				if slices.Sort(got); !slices.Equal(got, slices.Sorted(slices.Values(ids))) {
					t.Errorf("%s: link groups as %s of the VLANs %d, want %d", s.backend, role, got, ids)
				}
			}
			t.Logf("%s: %s%s", s.backend, s.smcrun(t, "linkgroup", "list"), s.smcrun(t, "link", "list"))
		}
	}
	t.Run("None", func(t *testing.T) { talk(t, 0, kernel, user) })
	for _, id := range []uint16{100, 200} {
		k, u := onVLAN(t, kernel, user, id)
		t.Run(fmt.Sprint(id), func(t *testing.T) { talk(t, id, k, u) })
	}
	// As in the kernel, a VLAN has the pnetid of the netdev below it.
	user.smcrun(t, "pnet", "add", "SMC1", "-I", "u0", "-D", "soft-u0")
	k, u := onVLAN(t, kernel, user, 300)
	t.Run("PNETID", func(t *testing.T) { talk(t, 300, k, u) })
	for _, g := range query[linkGroup](t, user, "linkgroup", "list") {
		if id := map[bool]string{true: "SMC1"}[g.VLAN == 300]; g.PNETID != id {
			t.Errorf("link group %s of VLAN %d has pnetid %q, want %q", g.ID, g.VLAN, g.PNETID, id)
		}
	}

	flows := roceFlows(t, stop()[0])
	for f, n := range flows {
		if !used[f] {
			t.Errorf("%d RoCE packets from %s to %s in VLAN %d", n, f.from, f.to, f.vlan)
		}
	}
	for f := range used {
		if flows[f] == 0 {
			t.Errorf("no RoCE packet from %s to %s in VLAN %d", f.from, f.to, f.vlan)
		}
	}
	var all []string
	for f, n := range flows {
		all = append(all, fmt.Sprintf("VLAN %d, %s to %s: %d", f.vlan, f.from, f.to, n))
	}
	slices.Sort(all)
	t.Logf("RoCE packets: %s", strings.Join(all, "; "))
	wantQuiet(t, user)
}
