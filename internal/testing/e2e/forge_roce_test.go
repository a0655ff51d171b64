// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

// TestForgedRoCE: a user without privileges on one host, who knows the queue pairs of a
// link group, sends RoCE packets with many PSNs to the other host, each with a request to
// end the group. None is executed. The group and its connections go on, and the other
// host counts the packets and says in its log that somebody sends them.
func TestForgedRoCE(t *testing.T) {
	l := newLab(t, "setpriv", "tshark")
	stacks := map[*netnstest.Host]*netnstest.Process{l.A: l.serveAsIs(l.A), l.B: l.serveAsIs(l.B)}
	addr := l.B.Addr() + ":5001"
	server := l.under(l.B, bin("probe"), "server", addr)
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	victim := l.under(l.A, bin("probe"), "client", addr, "5", "-busy")
	if err := victim.WaitOutput("holding 5 connections", startTime); err != nil {
		t.Fatal(err)
	}
	groups := l.groupIDs(l.A)
	// The first of them have the PSNs that the peer may expect, which grow more slowly than these. What decides is the UDP port,
	// before the PSN is looked at: TestPeerPort of softroce has all of them.
	packets := 1 << 21
	if testing.Short() {
		packets = 1 << 18
	}
	for _, from := range []*netnstest.Host{l.A, l.B} {
		to := l.B
		if from == l.B {
			to = l.A
		}
		qpn := l.peerQPN(from)
		psn := l.sentPSN(from, qpn)
		argv := as(hostileUser, bin("hostile"), "sweep", from.Addr(), to.Addr(), strconv.Itoa(qpn), strconv.Itoa(psn), strconv.Itoa(packets))
		p := from.Go(t, argv[0], argv[1:]...)
		if err := p.Wait(3 * time.Minute); err != nil {
			t.Fatalf("%v\n%s", err, p.Log())
		}
		t.Logf("%s forges, from PSN %d on:\n%s", from.Name, psn, p.Log())
		if strings.Contains(p.Log(), "took") || strings.Contains(p.Log(), "tried 0 ports") {
			t.Errorf("UDP ports of the stack:\n%s", p.Log())
		}
		refused, other := l.refused(to), l.refused(from)
		t.Logf("refused: %+v", refused)
		// The rest was more than the receive buffer holds.
		if refused.Source < packets/2 || refused.PSN != 0 || refused.Key != 0 {
			t.Errorf("%s counts %+v of %d packets", to.Name, refused, packets)
		}
		if from == l.A && other.Source != 0 {
			t.Errorf("%s, to which nothing was sent, counts %+v", from.Name, other)
		}
		if log := stacks[to].Log(); !strings.Contains(log, "packets from the address of a peer, but not from the UDP port") || !strings.Contains(log, "peer="+from.Addr()) {
			t.Errorf("%s does not say it:\n%s", to.Name, log)
		}
	}
	for _, s := range stacks {
		if n := strings.Count(s.Log(), "level=WARN"); n > 3 {
			t.Errorf("%d warnings:\n%s", n, s.Log())
		}
	}
	if now := l.groupIDs(l.A); now != groups {
		t.Errorf("link groups %s, before the attack %s", now, groups)
	}
	l.exchanges(otherUser, addr)
	if log := victim.Log(); strings.Contains(log, "ended") {
		t.Errorf("connections of another user:\n%s", log)
	}
	terminate(t, victim)
	wantSummary(t, victim.Log(), 5)
	terminate(t, server)
	for _, s := range stacks {
		terminate(t, s)
	}
}

// groupIDs returns the ids of the link groups of a host.
func (l *lab) groupIDs(h *netnstest.Host) string {
	l.t.Helper()
	rows, err := l.rows(h, "linkgroup")
	if err != nil || len(rows) == 0 {
		l.t.Fatalf("link groups of %s: %v, %v", h.Name, rows, err)
	}
	var ids []string
	for _, r := range rows {
		ids = append(ids, fmt.Sprint(r["id"]))
	}
	return strings.Join(ids, " ")
}

// peerQPN returns the number of the peer's queue pair of a link of a host.
func (l *lab) peerQPN(h *netnstest.Host) int {
	l.t.Helper()
	rows, err := l.rows(h, "link")
	if err != nil || len(rows) == 0 {
		l.t.Fatalf("links of %s: %v, %v", h.Name, rows, err)
	}
	qpn, err := number(rows[0], "peer_qpn")
	if err != nil {
		l.t.Fatal(err)
	}
	return qpn
}

// awaitRoCE waits until a capture has some packets of RoCE.
func awaitRoCE(t testing.TB, c *netnstest.Capture) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settleTime)
	defer cancel()
	n := 0
	return c.Follow(ctx, func(p netnstest.Packet) {
		if p.RoCE {
			n++
		}
		if n == 20 {
			cancel()
		}
	})
}

// sentPSN returns a PSN of the requests that a host sends to a queue pair now.
func (l *lab) sentPSN(h *netnstest.Host, qpn int) (psn int) {
	l.t.Helper()
	const requests = "infiniband.bth.opcode < 13" // the others are answers
	err := netnstest.Until(settleTime, func() error {
		c := h.StartCapture(l.t, netnstest.CaptureOptions{SnapLen: roceHeaders, Filter: "udp port 4791"})
		if err := awaitRoCE(l.t, c); err != nil {
			return netnstest.Stop(err)
		}
		if _, err := c.Stop(); err != nil {
			return netnstest.Stop(err)
		}
		psns := tshark(l.t, c.File, fmt.Sprintf("infiniband.bth.destqp == %d and %s", qpn, requests), "infiniband.bth.psn")
		if len(psns) == 0 {
			return fmt.Errorf("%s sends nothing to queue pair %d", h.Name, qpn)
		}
		var err error
		psn, err = strconv.Atoi(psns[len(psns)-1])
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return psn
}

// refusals are what a host's device has refused.
type refusals struct{ Source, PSN, Key int }

// refused returns what the first device of a host has refused.
func (l *lab) refused(h *netnstest.Host) (r refusals) {
	l.t.Helper()
	var devices []struct{ Refused *refusals }
	out := l.smcr(h, "--backend", "user", "device", "list", "eth0", "-o", "json")
	if err := json.Unmarshal([]byte(out), &devices); err != nil || len(devices) != 1 || devices[0].Refused == nil {
		l.t.Fatalf("%v in %s", err, out)
	}
	return *devices[0].Refused
}
