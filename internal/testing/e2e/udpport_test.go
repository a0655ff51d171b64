// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"smcr/internal/testing/netnstest"
	messages "smcr/userstack/wire"
)

// TestUDPPortTold: in a first contact of version 2, both stacks tell the UDP port of their
// queue pair, and all packets come from there.
func TestUDPPortTold(t *testing.T) {
	l := newLab(t, "tshark")
	stacks := []*netnstest.Process{l.serveAsIs(l.A), l.serveAsIs(l.B)}
	addr := l.B.Addr() + ":5001"
	server := l.under(l.B, bin("probe"), "server", addr)
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	clc := l.A.StartCapture(t, netnstest.CaptureOptions{Filter: onWire(l.A, "tcp")})
	roce := l.A.StartCapture(t, netnstest.CaptureOptions{SnapLen: roceHeaders, Filter: "udp port 4791"})
	client := l.under(l.A, bin("probe"), "client", addr, "3", "-busy")
	if err := client.WaitOutput("holding 3 connections", startTime); err != nil {
		t.Fatal(err)
	}
	terminate(t, client)
	wantSummary(t, client.Log(), 3)
	for _, c := range []*netnstest.Capture{clc, roce} {
		if _, err := c.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	told, err := toldPorts(clc.File)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []*netnstest.Host{l.A, l.B} {
		used := tshark(t, roce.File, "udp.dstport == 4791 and ip.src == "+h.Addr(), "udp.srcport")
		slices.Sort(used)
		used = slices.Compact(used)
		if port := told[netip.MustParseAddr(h.Addr())]; port < 0xc000 || len(used) != 1 || used[0] != strconv.Itoa(int(port)) {
			t.Errorf("%s tells port %d and sends from %v", h.Name, port, used)
		}
	}
	terminate(t, server)
	for _, s := range stacks {
		terminate(t, s)
	}
}

// TestUDPPortTaken: where another program has the port of RoCE version 2, smcr info says so and
// names the cure, before the first connection and with it, and no version that is not there.
func TestUDPPortTaken(t *testing.T) {
	l := newLab(t)
	info := func() (out string) {
		t.Helper()
		return l.smcr(l.A, "--backend", "user", "info", "--output", "table")
	}
	const problem = "Problem:          RoCE version 2"
	stack := l.serveAsIs(l.A)
	if out := info(); !strings.Contains(out, "RoCE Versions:    v1 v2\n") || !strings.Contains(out, "RoCE Port:        UDP 4791") || strings.Contains(out, "Problem") {
		t.Errorf("with a free port:\n%s", out)
	}
	if err := l.A.Do(func() error {
		other, err := net.ListenPacket("udp", ":4791")
		if err == nil {
			t.Cleanup(func() { _ = other.Close() })
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	wantTaken := func(when string) {
		t.Helper()
		out := info()
		if !strings.Contains(out, "RoCE Versions:    v1\n") || !strings.Contains(out, problem) || !strings.Contains(out, "ss -lunp sport = :4791") || strings.Contains(out, "RoCE Port") {
			t.Errorf("%s:\n%s", when, out)
		}
	}
	wantTaken("without a device")
	other := l.serveAsIs(l.B)
	addr := l.B.Addr() + ":5001"
	server := l.under(l.B, bin("probe"), "server", addr)
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	client := l.under(l.A, bin("probe"), "client", addr, "1", "-busy")
	if err := client.WaitOutput("holding 1 connections", startTime); err != nil {
		t.Fatal(err)
	}
	wantTaken("with a connection")
	for _, p := range []*netnstest.Process{client, server, stack, other} {
		terminate(t, p)
	}
}

// toldPorts returns the UDP ports in ACCEPT and CONFIRM of the one first contact in a
// capture, by the host that tells them.
func toldPorts(file string) (map[netip.Addr]uint16, error) {
	flows, err := tcpFlows(file)
	if err != nil {
		return nil, err
	}
	told := map[netip.Addr]uint16{}
	for _, f := range flows {
		for from, s := range f.sides {
			for b := s.stream(1 << 62); len(b) > 0; {
				h, err := messages.ParseHeader(b)
				if err != nil || h.Length > len(b) {
					return nil, fmt.Errorf("from %v: %x: %w", from, b, err)
				}
				m, err := messages.ParseCLC(b[:h.Length])
				if err != nil {
					return nil, err
				}
				b = b[h.Length:]
				var x *messages.FirstContactExt
				switch m := m.(type) {
				case messages.AcceptV2:
					x = m.FirstContact
				case messages.ConfirmV2:
					x = m.FirstContact
				}
				if x == nil {
					continue
				}
				if _, twice := told[from.Addr()]; twice {
					return nil, fmt.Errorf("two first contacts")
				}
				told[from.Addr()] = x.UDPPort()
			}
		}
	}
	return told, nil
}
