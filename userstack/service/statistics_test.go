// SPDX-License-Identifier: Apache-2.0

package service

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/socktest"
	"smcr/internal/testing/testkind"
	"smcr/nl"
	"smcr/stats"
	"smcr/userstack/internal/rights"
)

// TestProgramStatistics checks what counts of programs that have a unix socket: the
// bytes, what they set on the connection and urgent data, and as calls what the
// stack moves between the socket and its buffers.
func TestProgramStatistics(t *testing.T) {
	socktest.NeedOOB(t)
	early := func(fd int) { // options that are set before the connection is established do not count
		for _, name := range []int{unix.TCP_NODELAY, unix.TCP_CORK} {
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, name, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	c := newCarriedBy(t, 0, early, attachEnd)
	ask := func(b *serviceBed) nl.Stats {
		t.Helper()
		st, err := b.s.stack.Control().Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	var before, beforeServer nl.Stats
	testkind.Eventually(t, "the exchange of newCarriedBy is not counted", func() (any, bool) {
		before, beforeServer = ask(c.client), ask(c.server)
		a, b := before.SMCR, beforeServer.SMCR
		return []stats.Tech{a, b}, a.RXBytes > 0 && a.TXBytes > 0 && b.RXBytes > 0 && b.TXBytes > 0
	})
	if n := before.SMCR; n.ClientV1+n.ClientV2 != 1 || n.Cork != 0 || n.NoDelay != 0 {
		t.Errorf("after the connection was made: %+v", n)
	}
	set := func(name int, value byte) {
		t.Helper()
		if err := c.cc.SetOption(t.Context(), rights.All, unix.IPPROTO_TCP, name, []byte{value, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
	}
	set(unix.TCP_CORK, 0)
	set(unix.TCP_NODELAY, 0)
	set(unix.TCP_NODELAY, 1)

	const size = 20000
	data := strings.Repeat("x", size)
	c.cprog.write(data)
	c.sprog.read(data)
	c.cprog.urge("u")
	c.sprog.wantUrgent('u')

	var sent, received stats.Tech
	testkind.Eventually(t, "the bytes and the urgent one are not counted", func() (any, bool) {
		sent, received = ask(c.client).Sub(before).SMCR, ask(c.server).Sub(beforeServer).SMCR
		return []stats.Tech{sent, received}, sent.TXBytes == size+1 && received.RXBytes == size+1 && received.Urgent == 1
	})
	if sent.Cork != 1 || sent.NoDelay != 1 || sent.Urgent != 1 || received.Cork+received.NoDelay != 0 {
		t.Errorf("options and urgent data: %+v, %+v", sent, received)
	}
	if sent.TXCalls == 0 || sent.TXSizes.Total() != sent.TXCalls || sent.RXCalls != 0 ||
		received.RXCalls == 0 || received.RXSizes.Total() != received.RXCalls || received.TXCalls != 0 {
		t.Errorf("transfers: %+v, %+v", sent, received)
	}
	if !sent.Counts(stats.CountRXUsage|stats.CountTXUsage) || sent.Counts(stats.CountSplice) || sent.Counts(stats.CountSendpage) || sent.Counts(stats.CountTXSmall) {
		t.Errorf("not counted: %b", sent.NotCounted)
	}
}
