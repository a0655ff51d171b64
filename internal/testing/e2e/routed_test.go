// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"smcr/internal/testing/netnstest"
)

// newRoutedLab is a lab whose hosts have a router between them: A is 10.77.0.1,
// B is 10.78.0.2.
func newRoutedLab(t *testing.T) (l *lab, router *netnstest.Host) {
	t.Helper()
	l = newLab(t, "ip", "sysctl", "tshark")
	router = l.B
	far := netnstest.New(t, netnstest.Options{})
	l.B = far.B
	for _, c := range []struct {
		h    *netnstest.Host
		argv string
	}{
		{far.A, "ip link set eth0 netns " + router.Name + " name eth1"},
		{router, "ip addr add 10.78.0.1/24 dev eth1"},
		{router, "ip link set eth1 up"},
		{router, "sysctl -qw net.ipv4.ip_forward=1"},
		{l.A, "ip route add 10.78.0.0/24 via " + router.Addr()},
		{l.B, "ip addr flush dev eth0 scope global"},
		{l.B, "ip addr add 10.78.0.2/24 dev eth0"},
		{l.B, "ip route add default via 10.78.0.1"},
	} {
		argv := strings.Fields(c.argv)
		if out, err := c.h.Command(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", c.argv, err, out)
		}
	}
	return l, router
}

// congest makes a host set the mark Congestion Experienced (RFC 3168) in each IPv4 packet
// of UDP that it receives on a netdev.
func congest(t *testing.T, h *netnstest.Host, netdev string) {
	t.Helper()
	const pass = 2 // XDP_PASS
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP,
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // data
			asm.LoadMem(asm.R3, asm.R1, 4, asm.Word), // data_end
			asm.Mov.Reg(asm.R4, asm.R2),
			asm.Add.Imm(asm.R4, 34),
			asm.JGT.Reg(asm.R4, asm.R3, "out"),
			asm.LoadMem(asm.R5, asm.R2, 12, asm.Half),
			asm.HostTo(asm.BE, asm.R5, asm.Half),
			asm.JNE.Imm(asm.R5, 0x0800, "out"),
			asm.LoadMem(asm.R5, asm.R2, 14+9, asm.Byte),
			asm.JNE.Imm(asm.R5, 17, "out"),
			asm.LoadMem(asm.R5, asm.R2, 14+1, asm.Byte),
			asm.Mov.Reg(asm.R6, asm.R5),
			asm.Or.Imm(asm.R6, 3),
			asm.StoreMem(asm.R2, 14+1, asm.R6, asm.Byte),
			asm.Sub.Reg(asm.R6, asm.R5), // the checksum is smaller by this difference
			asm.LoadMem(asm.R5, asm.R2, 14+10, asm.Half),
			asm.HostTo(asm.BE, asm.R5, asm.Half),
			asm.Add.Imm(asm.R5, 0xffff),
			asm.Sub.Reg(asm.R5, asm.R6),
			asm.Mov.Reg(asm.R6, asm.R5),
			asm.RSh.Imm(asm.R6, 16),
			asm.Add.Reg(asm.R5, asm.R6),
			asm.HostTo(asm.BE, asm.R5, asm.Half),
			asm.StoreMem(asm.R2, 14+10, asm.R5, asm.Half),
			asm.Mov.Imm(asm.R0, pass).WithSymbol("out"),
			asm.Return(),
		},
		License: "Apache-2.0",
	})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close() // the netdev keeps the program
	if err := h.Do(func() error {
		l, err := netlink.LinkByName(netdev)
		if err != nil {
			return err
		}
		return netlink.LinkSetXdpFdWithFlags(l, prog.FD(), nl.XDP_FLAGS_SKB_MODE)
	}); err != nil {
		t.Fatal(err)
	}
}

// TestRouted: with a router between the hosts, version 2 works through the router, and
// the changes of the router in the headers do no harm. Version 1 does not work through a
// router: without an enterprise ID, connections use TCP.
func TestRouted(t *testing.T) {
	t.Parallel()
	l, router := newRoutedLab(t)
	congest(t, router, "eth0")
	congest(t, router, "eth1")
	l.serve(l.A)
	l.serve(l.B)
	t.Run("NoEID", func(t *testing.T) {
		l.t = t
		w := l.watch()
		const size = 1 << 20
		addr := l.A.Addr() + ":8079"
		server := l.under(l.A, bin("webserver"), "-listen", addr)
		if err := server.WaitOutput("listening", startTime); err != nil {
			t.Fatal(err)
		}
		client := l.under(l.B, bin("webclient"), fmt.Sprintf("http://%s/bytes/%d", addr, size))
		if err := client.Wait(time.Minute); err != nil {
			t.Errorf("%v\n%s", err, client.Log())
		}
		if !strings.Contains(client.Log(), "smcr explain no-route") {
			t.Errorf("smcr run -v does not say why:\n%s", client.Log())
		}
		terminate(t, server)
		w.stop(t).wantPlain(t, 1, size)
	})
	t.Run("EID", func(t *testing.T) {
		l.t = t
		for _, h := range []*netnstest.Host{l.A, l.B} {
			l.smcr(h, "--backend", "user", "ueid", "add", enterpriseID)
		}
		v := l.watchVersions()
		size := l.transfer(8080)
		v.want(t, wayRouted, size)
		// The first bit of the extension for the first contact is at 104.
		for name, filter := range map[string]string{"ACCEPT": "smc.clc_msg == 2", "CONFIRM": "smc.clc_msg == 3"} {
			msgs := tshark(t, v.tcp.File, filter, "tcp.payload")
			if len(msgs) != 1 || len(msgs[0]) < 2*105 || msgs[0][2*104:2*105] != "00" {
				t.Errorf("%s says that there is no router: %v", name, msgs)
			}
		}
		if ce := tshark(t, v.v2.File, "ip.dst == "+l.A.Addr()+" and ip.dsfield.ecn == 3", "frame.number"); len(ce) == 0 {
			t.Error("no packet of RoCE has the mark of the router")
		}
		l.wantNoConnections(l.A, l.B)
	})
}

// TestBehindHost has a stack in a network namespace of its own, as that of a container is, whose packets a host forwards that has a stack as
// well. With an address of its own the container uses SMC-R. What the host translates to its own address is TCP: nobody speaks SMC in its name.
func TestBehindHost(t *testing.T) {
	t.Parallel()
	netnstest.RequireTools(t, "nft")
	l, host := newRoutedLab(t)
	container := l.A
	for _, h := range []*netnstest.Host{container, host, l.B} {
		l.serveAsIs(h)
	}
	l.smcr(host, "attach", "--cgroup", cgroupTop(t))
	v := l.watchVersions()
	v.want(t, wayRouted, l.transfer(8080))

	addr := "10.78.0.2:8081"
	server := l.under(l.B, bin("webserver"), "-listen", addr)
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	get := func() string {
		t.Helper()
		client := l.under(container, bin("webclient"), fmt.Sprintf("http://%s/bytes/%d", addr, 1<<20))
		if err := client.Wait(time.Minute); err != nil {
			t.Errorf("%v\n%s", err, client.Log())
		}
		return client.Log()
	}
	wantSummary(t, get(), 1)
	const rules = "add table ip smcrtest; add chain ip smcrtest post { type nat hook postrouting priority srcnat; oifname eth1 masquerade; }"
	if out, err := host.Command(t.Context(), "nft", rules).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if log := get(); !strings.Contains(log, "smcr: 0 connections over SMC-R, 1 over TCP") {
		t.Errorf("translated to the address of the host:\n%s", log)
	}
}
