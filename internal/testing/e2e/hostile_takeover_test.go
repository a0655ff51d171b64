// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

// TestTakeoverAttacked: while a stack hands over to others, a peer sends RoCE packets that it has
// sent before, with requests to end links, also to queue pairs that are gone, and a user of the peer
// writes CLC messages of the user's own at all times of handshakes. Connections from before and new
// ones go on, no stack ends by itself, and none takes more threads.
func TestTakeoverAttacked(t *testing.T) {
	const takeovers = 3
	l := newLab(t, "setpriv", "tshark")
	attacker := l.serveAsIs(l.A)
	stacks := []*netnstest.Process{l.serveAsIs(l.B)}
	addr := l.B.Addr() + ":5001"
	server, before := l.busy(addr)
	qpn := l.peerQPN(l.A)
	port, psn := l.sentFrom(l.A, qpn)
	for _, qp := range []int{qpn, qpn - 1} {
		replay := l.A.Go(t, bin("hostile"), "replay", l.A.Addr(), l.B.Addr(), strconv.Itoa(port), strconv.Itoa(qp), strconv.Itoa(psn), "100000")
		if err := replay.WaitOutput("replaying", startTime); err != nil {
			t.Fatal(err)
		}
	}
	threads := threadsOf(t, stacks[0].Pid())
	for n := range takeovers {
		argv := as(hostileUser, forger("forge", addr, "60")...)
		forge := l.A.Go(t, argv[0], argv[1:]...)
		time.Sleep(200 * time.Millisecond) // Real time: handshakes are in progress at its end.
		stacks = append(stacks, l.takeOver(l.B))
		wantLines(t, stacks[n], saysOver, 1)
		if err := forge.Wait(time.Minute); err != nil {
			t.Errorf("%v\n%s", err, forge.Log())
		}
		l.exchanges(otherUser, addr)
	}
	var devices []struct{ Refused *refusals }
	out := l.smcr(l.B, "--backend", "user", "device", "list", "eth0", "-o", "json")
	if err := json.Unmarshal([]byte(out), &devices); err != nil {
		t.Fatal(err)
	}
	old := 0
	for _, d := range devices {
		if d.Refused != nil {
			old += d.Refused.PSN + d.Refused.Source
		}
	}
	if t.Logf("%d packets were refused", old); old == 0 {
		t.Errorf("no packet was refused: the test shows nothing\n%s", out)
	}
	for i, s := range append(stacks, attacker) {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", s.Pid()))
		if err != nil { // it has ended, perhaps just now
			if err := s.Wait(endTime); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
			if i == 0 || i == takeovers {
				t.Errorf("stack %d has ended:\n%s", i, s.Log())
			}
			continue
		}
		if n := len(tasks); n > threads+32 {
			t.Errorf("%d threads of stack %d, %d before", n, i, threads)
		}
		if log := s.Log(); strings.Contains(log, "panic") || strings.Count(log, "level=WARN") > 250 {
			t.Errorf("the log of stack %d:\n%.4000s", i, log)
		}
	}
	endUndisturbed(t, before)
	terminate(t, server)
}

// sentFrom returns the UDP port from which a host sends requests to a queue pair, and the number of
// one of them.
func (l *lab) sentFrom(h *netnstest.Host, qpn int) (port, psn int) {
	l.t.Helper()
	err := netnstest.Until(settleTime, func() error {
		c := h.StartCapture(l.t, netnstest.CaptureOptions{SnapLen: roceHeaders, Filter: "udp port 4791"})
		if err := awaitRoCE(l.t, c); err != nil {
			return netnstest.Stop(err)
		}
		if _, err := c.Stop(); err != nil {
			return netnstest.Stop(err)
		}
		filter := fmt.Sprintf("infiniband.bth.destqp == %d and infiniband.bth.opcode < 13", qpn)
		ports, psns := tshark(l.t, c.File, filter, "udp.srcport"), tshark(l.t, c.File, filter, "infiniband.bth.psn")
		if len(psns) == 0 || len(ports) == 0 {
			return fmt.Errorf("%s sends nothing to queue pair %d", h.Name, qpn)
		}
		var err error
		if port, err = strconv.Atoi(ports[0]); err == nil {
			psn, err = strconv.Atoi(psns[0])
		}
		return err
	})
	if err != nil {
		l.t.Fatal(err)
	}
	return port, psn
}

// threadsOf returns how many threads a process has.
func threadsOf(t *testing.T, pid int) int {
	t.Helper()
	tasks, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(tasks)
}
