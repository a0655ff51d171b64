// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/netnstest"
)

// TestStagesAttacked: a hostile user does to its TCP sockets whatever a program without rights can, at each moment of a connection:
// connecting, accepting, both. 500 connections of another user beside it go on, new ones use SMC-R, and the stacks get back what was
// taken.
func TestStagesAttacked(t *testing.T) {
	const (
		victims, ports = 500, 40
		attempts       = 28 * 12 * 2 // each act at each moment, twice
	)
	l := newLab(t, "setpriv")
	stacks := []*netnstest.Process{l.serve(l.A), l.serve(l.B)}
	addr := l.B.Addr() + ":5001"
	server := l.under(l.B, bin("probe"), "server", addr)
	if err := server.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	victim := l.under(l.A, bin("probe"), "client", addr, strconv.Itoa(victims), "-busy")
	if err := victim.WaitOutput(fmt.Sprintf("holding %d connections", victims), time.Minute); err != nil {
		t.Fatal(err)
	}
	before := [2]int{}
	for i, s := range stacks {
		n, err := descriptors(s.Pid())
		if err != nil {
			t.Fatal(err)
		}
		before[i] = n
	}
	quiet := l.B.Addr() + ":6001"
	listens := l.under(l.B, bin("probe"), "server", quiet, strconv.Itoa(ports))
	if err := listens.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	hostile := l.B.Addr() + ":7001"
	argv := as(otherUser, underArgv(bin("hostile"), "stages-accepted", hostile, strconv.Itoa(ports))...)
	accepts := l.B.Go(t, argv[0], argv[1:]...)
	if err := accepts.WaitOutput("listening", startTime); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{quiet, hostile} {
		argv := as(hostileUser, underArgv(bin("hostile"), "stages", to, strconv.Itoa(ports), strconv.Itoa(attempts))...)
		p := l.A.Go(t, argv[0], argv[1:]...)
		if err := p.Wait(time.Minute); err != nil {
			t.Errorf("%v\n%s", err, p.Log())
		}
		t.Log(strings.TrimSpace(p.Log()))
		l.exchanges(otherUser, addr)
	}
	accepts.Kill()
	terminate(t, listens)
	for i, s := range stacks {
		err := netnstest.Until(2*settleTime, func() error {
			n, err := descriptors(s.Pid())
			if err == nil && n > before[i]+64 { // sockets in stock, and what is being made
				err = fmt.Errorf("%d descriptors, %d before", n, before[i])
			}
			return err
		})
		if err != nil {
			t.Errorf("stack %d: %v", i, err)
		}
	}
	if log := victim.Log(); strings.Contains(log, "ended") {
		t.Errorf("connections of another user:\n%.2000s", log)
	}
	terminate(t, victim)
	wantSummary(t, victim.Log(), victims)
	terminate(t, server)
	for _, s := range stacks {
		terminate(t, s)
		if strings.Contains(s.Log(), "panic") {
			t.Errorf("a stack:\n%.4000s", s.Log())
		}
	}
}
