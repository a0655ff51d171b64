// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"flag"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"smcr/internal/testing/guest"
	"smcr/internal/testing/testkind"
	"smcr/userstack/wire"
)

var long = flag.Bool("long", false, "run what takes more than ten minutes (TestKernelIdleLong), and more of what takes long (TestBig)")

// twoKernelsIdle is a capture of two kernels with two idle link groups, whose servers are
// on different hosts. The servers end them.
const twoKernelsIdle = "testdata/captures/z_idle_lgr_timeout.srv.pcap"

// Descriptions of DELETE LINK messages about an idle group. One side sends it, the other
// confirms.
const (
	endOrderly   = "one: all true orderly true reply false"
	agreeOrderly = "other: all true orderly true reply false"
	agree        = "other: all true orderly false reply false"
)

// deleteLinks returns the DELETE LINK messages of one group in order, except those
// because a program ends the group.
func deleteLinks(frames []frame) []string {
	var said []string
	var first netip.Addr
	for _, f := range frames {
		m, ok := f.llc.(wire.DeleteLink)
		if !ok {
			continue
		}
		who := "other"
		if !first.IsValid() || f.from == first {
			first, who = f.from, "one"
		}
		line := fmt.Sprintf("%s: all %v orderly %v reply %v", who, m.All, m.Orderly, m.Reply)
		if m.Reason != wire.DeleteLinkProgram {
			line += ", " + m.Reason.String()
		}
		said = append(said, line)
	}
	return said
}

// TestTwoKernelsIdle checks the messages in the capture with which TestKernelIdle
// compares.
func TestTwoKernelsIdle(t *testing.T) {
	testkind.System(t)
	t.Parallel()
	byQP := func(qps ...uint32) (of []frame) {
		for _, f := range readCapture(t, twoKernelsIdle) {
			if f.llc != nil && slices.Contains(qps, f.qp) {
				of = append(of, f)
			}
		}
		return of
	}
	// The queue pairs of the two groups. Those of the first group have the same number.
	for _, group := range [][]frame{byQP(0x11), byQP(0x12, 0x13)} {
		if diff := cmp.Diff([]string{endOrderly, agree}, deleteLinks(group)); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}

// An idleGroup is a link group without connections.
type idleGroup struct {
	direction
	role  string          // role of the user-space stack
	from  int64           // position in the capture before its first message
	qps   map[sameQP]bool // the destinations of its messages
	first time.Time       // a time before its connection began
	last  time.Time       // a time after its connection ended
}

type sameQP struct {
	at netip.Addr
	qp uint32
}

// leaveIdle makes a connection, and so a link group, and closes it.
func leaveIdle(t *testing.T, d direction, messages *capture, port uint16) *idleGroup {
	t.Helper()
	x := &idleGroup{direction: d, role: "CLNT", from: messages.size(), qps: map[sameQP]bool{}, first: time.Now()}
	if d.server.backend == "user" {
		x.role = "SERV"
	}
	at := netip.AddrPortFrom(netip.MustParseAddr(d.server.addr), port)
	stop := d.server.start(t, "listening", "serve", at.String())
	d.client.connect(t, "echo", at)
	stop()
	x.last = time.Now()
	for _, f := range messages.since(t, x.from) {
		if f.llc != nil {
			x.qps[sameQP{f.to, f.qp}] = true
		}
	}
	if len(x.qps) == 0 {
		t.Fatalf("%s: no LLC message", d.name)
	}
	return x
}

// ends waits until the kernel ends the group: after the time after, or some time later. Timers of
// Linux are not exact, and long ones are less exact.
func (x *idleGroup) ends(t *testing.T, messages *capture, after time.Duration) {
	t.Helper()
	listed := func(s *side, role string) bool {
		return slices.ContainsFunc(query[linkGroup](t, s, "linkgroup", "list"), func(g linkGroup) bool { return g.Role == role })
	}
	// The messages must be those of two kernels, except for the differences in
	// docs/interop.md: a client that receives DELETE LINK does not answer, and a server
	// confirms in order.
	user, kernel, theirs, want := x.client, x.server, "SERV", []string{endOrderly}
	if x.role == "SERV" {
		user, kernel, theirs, want = x.server, x.client, "CLNT", []string{endOrderly, agreeOrderly}
	}
	for listed(user, x.role) {
		if time.Since(x.last) > after+testkind.Patience { // Real time: the timer of the kernel runs.
			t.Fatalf("our link group as %s is there after %v", x.role, time.Since(x.last))
		}
		time.Sleep(200 * time.Millisecond) // Real time: a look costs the guest, for ten minutes.
	}
	took := time.Since(x.first)
	t.Logf("the kernel as %s ended the link group after %v", theirs, took.Round(100*time.Millisecond))
	if took < after {
		t.Errorf("the link group ended after %v, want %v", took, after)
	}
	eventually(t, "the kernel's group is gone", func() bool { return !listed(kernel, theirs) })
	said := slices.DeleteFunc(messages.since(t, x.from), func(f frame) bool { return !x.qps[sameQP{f.to, f.qp}] })
	if diff := cmp.Diff(want, deleteLinks(said)); diff != "" {
		t.Errorf("DELETE LINK: -want +got:\n%s", diff)
	}
	if i := slices.IndexFunc(said, func(f frame) bool { _, ok := f.llc.(wire.DeleteLink); return ok }); i >= 0 && said[i].from.String() != kernelAddr {
		t.Errorf("%v ended the link group, want the kernel", said[i].from)
	}
}

// newIdleBed makes a bed in which only the kernel ends link groups.
func newIdleBed(t *testing.T, idle time.Duration) (kernel, user *side, messages *capture) {
	t.Helper()
	kernel, user = newBedOf(t, setup{devices: 1, kernelIdle: idle, options: []string{"--group-idle", "1h"}})
	user.run(t, "ethtool", "-K", "u0", "tx-udp-segmentation", "off") // one message in each frame
	messages = newCapture(t, kernel.Guest, "k0")
	messages.start(t)
	return kernel, user, messages
}

// TestKernelIdle waits until the kernel ends its idle link groups, as server and as
// client. Its time of 10 minutes is changed to seconds. The messages of both sides must
// be those of two kernels.
func TestKernelIdle(t *testing.T) {
	t.Parallel()
	const idle = 6 * time.Second
	kernel, user, messages := newIdleBed(t, idle)
	for i, d := range directions(kernel, user) {
		t.Run(d.name, func(t *testing.T) {
			after := idle
			if d.client == kernel {
				after += guest.IdleClient
			}
			leaveIdle(t, d, messages, uint16(7100+i)).ends(t, messages, after)
		})
	}
	groupsGone(t, kernel, user)
	works(t, kernel, user, 7110)
	wantQuiet(t, user)
}

// TestKernelIdleLong is TestKernelIdle with the times of Linux: 600 s for a server and
// 610 s for a client (net/smc/smc_core.c).
func TestKernelIdleLong(t *testing.T) {
	t.Parallel()
	if !*long {
		t.Skip("takes eleven minutes: go test ./internal/testing/interop -run TestKernelIdleLong -long -timeout 20m")
	}
	kernel, user, messages := newIdleBed(t, 0)
	var groups []*idleGroup
	for i, d := range directions(kernel, user) {
		groups = append(groups, leaveIdle(t, d, messages, uint16(7100+i)))
	}
	// A timer of ten minutes may be 16 s late in Linux (kernel/time/timer.c), so both
	// groups may end at the same time.
	groups[1].ends(t, messages, 600*time.Second)
	groups[0].ends(t, messages, 610*time.Second)
	groupsGone(t, kernel, user)
	works(t, kernel, user, 7110)
	wantQuiet(t, user)
}
