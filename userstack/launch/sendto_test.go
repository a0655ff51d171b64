// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"context"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"smcr/internal/testing/testkind"
	"smcr/userstack/broker"
)

// TestSendto compares sendto() with an address on a connection over SMC with the answers
// over TCP.
func TestSendto(t *testing.T) {
	testkind.System(t)
	needProgram(t, "python3")
	addr := echoServer(t, "tcp4", "127.0.0.1:0", "")
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	var tcp []byte
	var err error
	var native sync.WaitGroup
	native.Go(func() { tcp, err = exec.CommandContext(ctx, "python3", "testdata/sendto.py", addr).Output() })
	res := launched(t, &fakeStack{}, "", nil, "python3", "testdata/sendto.py", addr)
	native.Wait()
	if err != nil {
		t.Fatalf("over TCP: %v\n%s", err, tcp)
	}
	want := strings.Split(strings.TrimSpace(string(tcp)), "\n")
	if len(want) < 29 {
		t.Fatalf("%d answers over TCP:\n%s", len(want), tcp)
	}
	got := strings.Split(strings.TrimSpace(res.out), "\n")
	if res.status != 0 || len(got) != len(want) {
		t.Fatalf("status %d, %d answers, want %d\n%s", res.status, len(got), len(want), res.out)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%s\nTCP: %s", got[i], want[i])
		}
	}
	if n := res.stats.ByMode[broker.ModeSMCR]; n < 8 {
		t.Errorf("%d connections over SMC", n)
	}
}

// TestOwed: a call that a signal interrupted, and that the kernel repeats, has the result
// of what was sent for it. A call that only looks like it sends its own bytes.
func TestOwed(t *testing.T) {
	c := &conn{}
	key := func(i int) callID { return callID{tid: i, args: [6]uint64{3, 0x1000, 5}} }
	for i := range 2 * maxOwed {
		c.owe(key(i), owed{bytes: i})
	}
	if n := len(c.report.owed); n != maxOwed {
		t.Errorf("%d calls are remembered, want %d", n, maxOwed)
	}
	last := 2*maxOwed - 1
	if o, ok := c.owes(key(last)); !ok || o.bytes != last {
		t.Errorf("owed %+v, %v", o, ok)
	}
	if _, ok := c.owes(key(last)); ok {
		t.Error("a call has its result twice")
	}
}
