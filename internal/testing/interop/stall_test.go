// SPDX-License-Identifier: Apache-2.0

package interop

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"smcr/internal/testing/guest"
)

const (
	// stopLimit is how long the connections of a round may take. The stack is stopped for
	// at most 16 s in a round.
	stopLimit = 90 * time.Second
	stopConns = 60
)

// TestStops stops the process of the stack again and again while connections are made,
// for longer than either side waits. A connection may fail then, but it must end, and
// both sides must have used SMC-R or both TCP.
func TestStops(t *testing.T) {
	t.Parallel()
	rounds, err := strconv.Atoi(os.Getenv("SMCR_INTEROP_STOPS"))
	if err != nil {
		t.Skip("takes half a minute a round: set SMCR_INTEROP_STOPS to a number of rounds, and SMCR_INTEROP_SEED to repeat some")
	}
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("SMCR_INTEROP_SEED"); s != "" {
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("SMCR_INTEROP_SEED=%d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	kernel, user := newBed(t, 1)
	at := map[*side]netip.AddrPort{}
	for _, s := range []*side{kernel, user} {
		at[s] = netip.AddrPortFrom(netip.MustParseAddr(s.addr), 7700)
		s.start(t, "listening", "serve", at[s].String())
	}
	for i := range rounds {
		d := directions(kernel, user)[rng.IntN(2)]
		t.Run(fmt.Sprint(i, d.name), func(t *testing.T) { testStops(t, rng, d.client, d.server, user, at[d.server]) })
	}
}

func testStops(t *testing.T, rng *rand.Rand, client, server, user *side, at netip.AddrPort) {
	sides := []*side{client, server}
	var before [2]counters
	for i, s := range sides {
		before[i] = stats(t, s)
	}
	some := func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
	c := client.Command(append(append([]string{}, client.prefix...),
		client.peerArgs("echo", "-n", fmt.Sprint(stopConns), "-bytes", "100", at.String())...)...)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second + some(2*time.Second)) // Real time: connections are being made.
	for _, most := range []time.Duration{7, 3, 3, 3} {
		if err := user.stack.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(some(most * time.Second)) // Real time: the stack stands still.
		if err := user.stack.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		time.Sleep(some(700 * time.Millisecond)) // Real time: the stack works at a random time.
	}
	ctx, cancel := context.WithTimeout(t.Context(), stopLimit)
	defer cancel()
	r, err := c.Wait(ctx)
	var exit *guest.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Errorf("it hangs: %v", err)
	}
	for _, wrong := range []string{"differs", "behind the end"} {
		if strings.Contains(r.Stderr, wrong) {
			t.Errorf("what comes is not what was sent: %s", r.Stderr)
		}
	}
	var tcp [2]int
	for i, s := range sides {
		x := stats(t, s)
		tcp[i] = x.Fallbacks.Client + x.Fallbacks.Server - before[i].Fallbacks.Client - before[i].Fallbacks.Server
	}
	if tcp[0] != tcp[1] {
		t.Errorf("%s took %d connections for TCP, %s %d", client.backend, tcp[0], server.backend, tcp[1])
	}
	t.Logf("%d connections over TCP; %s%s", tcp[0], r.Stdout, r.Stderr)
}
