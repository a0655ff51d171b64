// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
)

// fakeHands notes what it is told to do. What cannot names cannot be done.
type fakeHands struct {
	did     []string
	has     bool // the program has the pair
	cannot  map[string]bool
	written bool
	cut     bool
	gone    bool // calls wait no more
	other   bool // the socket has another descriptor
	ended   int  // how often the attempt ended
}

func (h *fakeHands) do(format string, args ...any) {
	h.did = append(h.did, fmt.Sprintf(format, args...))
}

func (h *fakeHands) try(what string) bool {
	if h.cannot[what] {
		h.do("%s!", what)
		return false
	}
	h.do("%s", what)
	return true
}

func (h *fakeHands) placed() bool { return h.has }

func (h *fakeHands) place(n *notif, _ bool) bool {
	if h.has {
		return true
	}
	h.has = !h.gone && !h.other && h.try("place")
	return h.has
}

func (h *fakeHands) duplicated() bool { return h.other }

func (h *fakeHands) placeLocal(n *notif, _ bool, _ *broker.Descriptor) bool {
	h.has = !h.gone && h.try("place-local")
	return h.has
}

func (h *fakeHands) swapBack(n *notif) bool {
	if !h.gone && h.try("swap-back") {
		h.has = false
		return true
	}
	return false
}

func (h *fakeHands) valid(*notif) bool { return !h.gone }

func (h *fakeHands) answer(_ *notif, e syscall.Errno) bool {
	h.do("answer %d", int(e))
	return !h.gone
}

func (h *fakeHands) drain() bool  { return h.try("drain") }
func (h *fakeHands) wrote() bool  { return h.written }
func (h *fakeHands) hungUp() bool { return h.cut }
func (h *fakeHands) watch()       { h.do("watch") }

func (h *fakeHands) await(d time.Duration) {
	if d > 0 {
		h.do("await")
	}
}

func (h *fakeHands) proceed() bool    { return h.try("proceed") }
func (h *fakeHands) release()         { h.do("release") }
func (h *fakeHands) cancel()          { h.do("cancel") }
func (h *fakeHands) awaitServiceEnd() { h.do("await service end") }
func (h *fakeHands) connect()         { h.do("connect") }
func (h *fakeHands) disconnect()      { h.do("disconnect") }

func (h *fakeHands) call(n *notif) string {
	if n == nil {
		return "nobody"
	}
	return "call"
}

func (h *fakeHands) leave(n *notif) { h.ended++; h.do("leave %s", h.call(n)) }

func (h *fakeHands) native(n *notif, e syscall.Errno, begun bool) {
	h.ended++
	h.do("native %s %d %v", h.call(n), int(e), begun)
}

func (h *fakeHands) carry(n *notif, by carrier) {
	h.ended++
	h.do("carry %s %s", h.call(n), [...]string{"service", "service-tcp", "launcher", "nobody"}[by])
}

func (h *fakeHands) fail(n *notif, e syscall.Errno) bool {
	h.do("fail %s %d", h.call(n), int(e))
	if n != nil && !h.gone && !h.has {
		h.ended++
		return true
	}
	return false
}

func (h *fakeHands) retire() { h.ended++; h.do("retire") }

func (h *fakeHands) counts(mode broker.Mode, why string) { h.do("count %v", mode) }
func (h *fakeHands) countsFailed(string)                 { h.do("count failed") }
func (h *fakeHands) learn(o outcome)                     { h.do("learn %d", o) }

var (
	smcEvent    = broker.Event{Kind: broker.EventEstablished, PeerSMC: true}
	noSMCEvent  = broker.Event{Kind: broker.EventEstablished}
	readySMC    = broker.Event{Kind: broker.EventReady, Mode: broker.ModeSMCR}
	readyTCP    = broker.Event{Kind: broker.EventReady, Mode: broker.ModeTCP}
	notCand     = broker.Event{Kind: broker.EventNotCandidate}
	failedEvent = broker.Event{Kind: broker.EventFailed, Errno: unix.ECONNREFUSED}
	closedEvent = broker.Event{Kind: broker.EventClosed}
	deadEvent   = broker.Event{Kind: eventDead}
)

func localEvent() broker.Event {
	return broker.Event{Kind: broker.EventLocal, End: broker.NewDescriptor(-1)}
}

// TestSteps has rows for each line of the table at steps.
func TestSteps(t *testing.T) {
	testkind.System(t)
	const (
		waits    = 1 << iota // a call waits for the outcome
		nonblock             // the socket is non-blocking
		placed               // the program has the pair
		begun                // connect() has returned EINPROGRESS
		gone                 // the call that waits was interrupted
		cut                  // the program closed its end
		wrote                // the program wrote
		other                // the socket has another descriptor
	)
	ev := func(e broker.Event) func(*steps) { return func(x *steps) { x.event(e) } }
	connectAgain := func(x *steps) { x.offered(&stoppedCall{n: &notif{}, wait: true, nonblock: x.nonblock}) }
	otherCall := func(x *steps) { x.offered(&stoppedCall{n: &notif{}}) }
	for _, test := range []struct {
		name   string
		stage  stage
		is     int
		cannot string
		event  func(*steps)
		did    string
		then   stage
	}{
		{"hold time, blocking", stageTCP, waits, "", (*steps).holdOver, "place", stageHeld},
		{"hold time, non-blocking", stageTCP, waits | nonblock, "", (*steps).holdOver, "place, answer 115", stageHeld},
		{"hold time, interrupted", stageTCP, waits | gone, "", (*steps).holdOver, "", stageHeld},
		{"hold time, later", stageOrphan, waits | nonblock, "", (*steps).holdOver, "place, answer 115", stageOrphan},
		{"held, again", stageHeld, nonblock, "", connectAgain, "place, answer 115", stageHeld},
		{"tcp, again", stageTCP, nonblock, "", connectAgain, "", stageTCP},
		{"tcp, looks", stageTCP, 0, "", otherCall, "place", stageTCP},
		{"tcp, looks after EINPROGRESS", stageTCP, nonblock | begun, "", otherCall, "", stageTCP},
		{"clc, looks", stageCLC, placed, "", otherCall, "", stageCLC},

		{"not a candidate", stageTCP, waits, "", ev(notCand), "count TCP, leave call", stageOver},
		{"not a candidate, interrupted", stageTCP, 0, "", ev(notCand), "count TCP, leave nobody", stageOver},
		{"not a candidate, placed", stageHeld, waits | placed, "", ev(notCand), "count TCP, connect", stageOwn},
		{"not a candidate, late", stageOwn, placed, "", ev(notCand), "", stageOwn},
		{"clc, no answer", stageCLC, placed, "", ev(notCand), "count TCP, disconnect, connect", stageOwn},
		{"clc, no answer, a call waits", stageCLC, placed | waits, "", ev(notCand), "count TCP, disconnect, connect", stageOwn},

		{"no SMC", stageTCP, waits, "", ev(noSMCEvent), "count TCP, learn 1, native call 0 false", stageOver},
		{"no SMC, non-blocking", stageTCP, waits | nonblock, "", ev(noSMCEvent), "count TCP, learn 1, native call 115 false", stageOver},
		{"no SMC, placed", stageHeld, waits | placed, "", ev(noSMCEvent), "count TCP, learn 1, swap-back, release, native call 0 false", stageOver},
		{"no SMC, shared", stageHeld, waits | placed, "swap-back", ev(noSMCEvent), "count TCP, learn 1, swap-back!, drain, carry call launcher", stageOver},
		{"no SMC, nobody waits", stageHeld, nonblock | placed | begun, "", ev(noSMCEvent), "count TCP, learn 1, drain, watch, await", stageGiveOwn},
		{"no SMC, interrupted", stageHeld, waits | placed | gone, "", ev(noSMCEvent), "count TCP, learn 1, drain, watch, await", stageGiveOwn},
		{"no SMC, broken", stageHeld, placed, "drain", ev(noSMCEvent), "count TCP, learn 1, drain!, disconnect, fail nobody 103, await", stageFailed},
		{"own, connected", stageOwn, waits | placed, "", ev(noSMCEvent), "swap-back, release, native call 0 false", stageOver},
		{"own, failed", stageOwn, waits | placed, "", ev(failedEvent), "count failed, disconnect, swap-back, fail call 111", stageOver},
		{"own, service gone", stageOwn, placed, "", ev(closedEvent), "", stageOwn},

		{"SMC", stageTCP, waits, "", ev(smcEvent), "place, proceed", stageCLC},
		{"SMC, non-blocking", stageTCP, waits | nonblock, "", ev(smcEvent), "place, proceed, answer 115", stageCLC},
		{"SMC, placed", stageHeld, placed | nonblock | begun, "", ev(smcEvent), "proceed", stageCLC},
		{"SMC, no call", stageTCP, 0, "", ev(smcEvent), "await", stageSwap},
		{"SMC, interrupted", stageTCP, waits | gone, "", ev(smcEvent), "await", stageSwap},
		{"SMC, the service is gone", stageTCP, waits | nonblock, "proceed", ev(smcEvent), "place, proceed!", stageCLC},
		{"swap, a call", stageSwap, 0, "", otherCall, "place, proceed", stageCLC},
		{"swap, a connect", stageSwap, nonblock, "", connectAgain, "place, proceed, answer 115", stageCLC},
		{"swap, time over", stageSwap, 0, "", (*steps).timedOut, "cancel, count failed, disconnect, fail nobody 103, await", stageFailed},
		{"swap, failed", stageSwap, 0, "", ev(failedEvent), "count failed, disconnect, fail nobody 111, await", stageFailed},

		{"hold time, duplicated", stageTCP, waits | nonblock | other, "", (*steps).holdOver, "count TCP, cancel", stageWithdraw},
		{"held, again, duplicated", stageHeld, nonblock | other, "", connectAgain, "count TCP, cancel", stageWithdraw},
		{"tcp, looks, duplicated", stageTCP, other, "", otherCall, "count TCP, cancel", stageWithdraw},
		{"SMC, duplicated", stageTCP, waits | other, "", ev(smcEvent), "count TCP, cancel", stageWithdraw},
		{"swap, a call, duplicated", stageSwap, other, "", otherCall, "count TCP, cancel", stageWithdraw},
		{"swap, a connect, duplicated", stageSwap, nonblock | other, "", connectAgain, "count TCP, cancel", stageWithdraw},
		{"withdraw, hold time", stageWithdraw, waits | nonblock | other, "", (*steps).holdOver, "", stageWithdraw},
		{"withdraw, failed", stageWithdraw, waits | other, "", ev(failedEvent), "", stageWithdraw},
		{"withdraw, SMC", stageWithdraw, waits | other, "", ev(smcEvent), "", stageWithdraw},
		{"withdraw, service gone", stageWithdraw, waits | other, "", ev(closedEvent), "await service end", stageOrphan},

		{"local", stageTCP, waits, "", ev(localEvent()), "place-local, count local, proceed, carry call nobody", stageOver},
		{"local, non-blocking", stageTCP, waits | nonblock, "", ev(localEvent()), "place-local, count local, proceed, answer 115, carry nobody nobody", stageOver},
		{"local, no call", stageTCP, 0, "", ev(localEvent()), "count TCP, release, native nobody 0 false", stageOver},
		{"local, placed", stageHeld, nonblock | placed | begun, "", ev(localEvent()), "drain, watch, await", stageJoin},
		{"local, placed, interrupted", stageHeld, waits | placed | gone, "", ev(localEvent()), "drain, watch, await", stageJoin},
		{"join, a call", stageJoin, placed | nonblock | begun, "", otherCall, "place-local, count local, proceed, carry nobody nobody", stageOver},
		{"join, a connect", stageJoin, placed, "", connectAgain, "place-local, count local, proceed, carry call nobody", stageOver},
		{"join, a call, shared", stageJoin, placed | nonblock | begun, "place-local", otherCall, "place-local!, count TCP, release, swap-back, release, native nobody 0 true", stageOver},
		{"join, wrote before a call", stageJoin, placed | wrote, "", otherCall, "count TCP, release, carry nobody launcher", stageOver},
		{"join, wrote", stageJoin, placed | wrote, "", (*steps).pairChanged, "count TCP, release, carry nobody launcher", stageOver},
		{"join, closed", stageJoin, placed | cut, "", (*steps).pairChanged, "cancel, leave nobody", stageOver},
		{"join, time over", stageJoin, placed, "", (*steps).timedOut, "count TCP, release, carry nobody launcher", stageOver},
		{"join, service gone", stageJoin, placed, "", ev(closedEvent), "count TCP, release", stageGiveOwn},
		{"local, shared", stageTCP, waits, "place-local", ev(localEvent()), "place-local!, count TCP, release, native call 0 false", stageOver},

		{"ready", stageCLC, waits | placed, "", ev(readySMC), "count SMC-R, drain, carry call service", stageOver},
		{"ready, nobody waits", stageCLC, placed | nonblock | begun, "", ev(readySMC), "count SMC-R, drain, carry nobody service", stageOver},
		{"ready, broken", stageCLC, waits | placed, "drain", ev(readySMC), "count SMC-R, drain!, disconnect, swap-back, fail call 103", stageOver},
		{"ready, TCP", stageCLC, waits | placed, "", ev(readyTCP), "count TCP, swap-back, release, native call 0 false", stageOver},
		{"ready, TCP, shared", stageCLC, waits | placed, "swap-back", ev(readyTCP), "count TCP, swap-back!, drain, carry call service-tcp", stageOver},
		{"ready, TCP, nobody waits", stageCLC, placed, "", ev(readyTCP), "count TCP, drain, watch, await", stageGive},
		{"ready, early", stageTCP, waits, "", ev(readySMC), "", stageTCP},
		{"clc, failed", stageCLC, waits | placed, "", ev(failedEvent), "count failed, disconnect, swap-back, fail call 111", stageOver},
		{"clc, failed, nobody waits", stageCLC, placed, "", ev(failedEvent), "count failed, disconnect, fail nobody 111, await", stageFailed},

		{"tcp, service gone", stageTCP, waits, "", ev(closedEvent), "count TCP, await service end", stageOrphan},
		{"clc, service gone", stageCLC, placed, "", ev(closedEvent), "count TCP, await service end", stageOrphan},
		{"dead", stageOrphan, waits, "", ev(deadEvent), "disconnect, leave call", stageOver},
		{"dead, nobody waits", stageOrphan, 0, "", ev(deadEvent), "disconnect, connect", stageOwn},
		{"dead, placed", stageOrphan, waits | placed, "", ev(deadEvent), "disconnect, connect", stageOwn},
		{"orphan, service gone", stageOrphan, placed, "", ev(closedEvent), "", stageOrphan},

		{"give, service gone", stageGive, placed, "", ev(closedEvent), "", stageGiveOwn},
		{"give, a call", stageGive, placed | nonblock | begun, "", otherCall, "swap-back, release, native nobody 0 true", stageOver},
		{"give, a connect", stageGive, placed, "", connectAgain, "swap-back, release, native call 0 false", stageOver},
		{"give, an interrupted call", stageGive, placed | gone, "", otherCall, "", stageGive},
		{"give, an interrupted connect", stageGiveOwn, placed | gone, "", connectAgain, "", stageGiveOwn},
		{"give, shared", stageGive, placed, "swap-back", otherCall, "swap-back!, carry nobody service-tcp", stageOver},
		{"give, wrote before a call", stageGiveOwn, placed | wrote, "", otherCall, "carry nobody launcher", stageOver},
		{"give, wrote", stageGive, placed | wrote, "", (*steps).pairChanged, "carry nobody service-tcp", stageOver},
		{"give, wrote and closed", stageGive, placed | wrote | cut, "", (*steps).pairChanged, "carry nobody service-tcp", stageOver},
		{"give, closed", stageGive, placed | cut, "", (*steps).pairChanged, "cancel, leave nobody", stageOver},
		{"give, time over", stageGiveOwn, placed, "", (*steps).timedOut, "carry nobody launcher", stageOver},

		{"failed, a call", stageFailed, placed, "", otherCall, "swap-back, retire", stageOver},
		{"failed, time over", stageFailed, placed, "", (*steps).timedOut, "retire", stageOver},
		{"failed, service gone", stageFailed, placed, "", ev(closedEvent), "", stageFailed},
		{"failed, closed", stageFailed, placed | cut, "", (*steps).pairChanged, "", stageFailed},
		{"clc, closed", stageCLC, placed | cut, "", (*steps).pairChanged, "cancel, leave nobody", stageOver},
		{"tcp, SO_SNDTIMEO", stageTCP, waits, "", (*steps).late, "answer 115", stageTCP},
	} {
		t.Run(test.name, func(t *testing.T) {
			is := func(bit int) bool { return test.is&bit != 0 }
			h := &fakeHands{has: is(placed), gone: is(gone), cut: is(cut), written: is(wrote), other: is(other), cannot: map[string]bool{test.cannot: true}}
			x := &steps{hands: h, stage: test.stage, nonblock: is(nonblock), blocking: !is(nonblock), begun: is(begun), decide: 1}
			if is(waits) {
				x.n = &notif{}
			}
			test.event(x)
			if did := strings.Join(h.did, ", "); did != test.did || x.stage != test.then {
				t.Errorf("%s; stage %d, want\n%s; stage %d", did, x.stage, test.did, test.then)
			}
		})
	}
}

// TestStepsAnyOrder: whatever comes in whatever order, an attempt ends once, does nothing
// afterwards, and ends if enough time passes.
func TestStepsAnyOrder(t *testing.T) {
	testkind.System(t)
	events := []func(x *steps, h *fakeHands){
		func(x *steps, _ *fakeHands) { x.event(notCand) },
		func(x *steps, _ *fakeHands) { x.event(noSMCEvent) },
		func(x *steps, _ *fakeHands) { x.event(smcEvent) },
		func(x *steps, _ *fakeHands) { x.event(localEvent()) },
		func(x *steps, _ *fakeHands) { x.event(readySMC) },
		func(x *steps, _ *fakeHands) { x.event(readyTCP) },
		func(x *steps, _ *fakeHands) { x.event(failedEvent) },
		func(x *steps, _ *fakeHands) { x.event(closedEvent) },
		func(x *steps, _ *fakeHands) { x.event(deadEvent) },
		func(x *steps, _ *fakeHands) { x.holdOver() },
		func(x *steps, _ *fakeHands) { x.timedOut() },
		func(x *steps, _ *fakeHands) { x.late() },
		func(x *steps, _ *fakeHands) { x.dropGone() },
		func(x *steps, h *fakeHands) { h.cut = true; x.pairChanged() },
		func(x *steps, h *fakeHands) { h.written = true; x.pairChanged() },
		func(x *steps, h *fakeHands) { h.gone = true },
		func(x *steps, h *fakeHands) { h.other = !h.has },
		func(x *steps, h *fakeHands) {
			h.gone = false
			x.offered(&stoppedCall{n: &notif{}, wait: true, nonblock: x.nonblock})
		},
		func(x *steps, h *fakeHands) { h.gone = false; x.offered(&stoppedCall{n: &notif{}}) },
	}
	for seed := range uint64(20000) {
		r := rand.New(rand.NewPCG(seed, 1))
		h := &fakeHands{cannot: map[string]bool{}}
		for _, what := range []string{"place", "place-local", "swap-back", "drain", "proceed"} {
			h.cannot[what] = r.IntN(8) == 0
		}
		nonblock := r.IntN(2) == 0
		x := &steps{hands: h, n: &notif{}, nonblock: nonblock, blocking: !nonblock, decide: 1}
		for range 40 {
			if x.over() {
				break
			}
			events[r.IntN(len(events))](x, h)
			if h.ended > 1 || (h.ended == 1) != x.over() {
				t.Fatalf("seed %d: ended %d times in stage %d: %q", seed, h.ended, x.stage, h.did)
			}
		}
		for i := 0; !x.over(); i++ {
			if i == 10 {
				t.Fatalf("seed %d: stays in stage %d: %q", seed, x.stage, h.did)
			}
			for _, e := range []broker.Event{closedEvent, deadEvent, failedEvent} {
				if !x.over() {
					x.event(e)
				}
			}
			if !x.over() {
				x.timedOut()
			}
		}
		if i := slices.IndexFunc(h.did, func(s string) bool { return strings.HasPrefix(s, "carry") }); i >= 0 && i != len(h.did)-1 {
			t.Fatalf("seed %d: goes on after the end: %q", seed, h.did)
		}
	}
}
