// SPDX-License-Identifier: Apache-2.0

package stacktest

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"smcr/internal/testing/testkind"
)

var simPlant = flag.String("sim.plant", "", "bugs that TestPlantedBugs plants: a regular expression; none means a few")

// plantedBug is a fault that a programmer could have made: a text in a file of the
// stack, with its path below userstack, and the replacement. The build with the fault exists
// only for the test (go help build, -overlay).
type plantedBug struct {
	name, file, old, new string
	quick                bool // tried in each run of the tests, not only in long ones
}

// plantedBugs are the faults that the simulation must find, each within plantedSeeds seeds.
var plantedBugs = []plantedBug{
	// Failover (RFC 7609, section 4.6).
	{name: "no failover validation", file: "conn/delivery.go", old: "p.out.validate = true", new: "p.out.validate = false"},
	{name: "bytes without confirmation are not written again", file: "conn/sender.go", old: "from := max(s.buf.delivered, s.read)", new: "from := s.written", quick: true},
	{name: "messages that arrived before a link was closed are dropped", file: "driver/group_env.go", old: "e.leftover = append(e.leftover, leftover{cl,", new: "_ = append(e.leftover, leftover{cl,"},
	{name: "a message on a failed link is not repeated", file: "conn/delivery.go", old: "	p.out.update = true\n}\n", new: "}\n"},
	// Data (section 4.5).
	{name: "window off by one", file: "conn/sender.go", old: "return s.elem.size - int(s.written-s.read) }", new: "return s.elem.size - int(s.written-s.read) + 1 }", quick: true},
	{name: "the producer cursor is ahead of the written bytes", file: "conn/transmit.go", old: "Prod: s.elem.cursor(s.written), Cons:", new: "Prod: s.elem.cursor(min(s.buf.produced, s.written+1)), Cons:"},
	{name: "the consumer cursor is ahead of the bytes that were read", file: "conn/transmit.go", old: "Cons: p.in.elem.cursor(p.in.read),\n", new: "Cons: p.in.elem.cursor(p.in.written),\n"},
	{name: "cursors wrap one byte late", file: "conn/element.go", old: "Count: uint32(r.start) + uint32(pos%n)}", new: "Count: uint32(r.start) + uint32(pos%(n+1))}"},
	{name: "a producer cursor beyond the window is accepted", file: "conn/receiver.go", old: "if n > size-(r.written-r.read) {", new: "if n > size<<15 {"},
	{name: "the reader is woken only once", file: "conn/conn.go", old: "func (c *Conn) RecvData() (a, b []byte) {\n	c.p.in.woken = false\n", new: "func (c *Conn) RecvData() (a, b []byte) {\n"},
	{name: "a message before CONFIRM is lost", file: "conn/moving.go", old: "d.msg, d.there = m, true", new: "d.msg = m"},
	// RMBs (section 4.4).
	{name: "an element is not zeroed", file: "linkgroup/rmb.go", old: "		t.env.ZeroRMB(r.handle, i*r.size, r.size)\n", new: ""},
	{name: "the memory of an element in use is given back", file: "linkgroup/rmb.go", old: "case e.used || !e.dirty || e.trimmed:", new: "case !e.dirty || e.trimmed:"},
	{name: "a chunk is given back before it is confirmed", file: "conn/sendbuf.go", old: "(k.end() <= b.delivered ||", new: "(k.end() <= b.produced ||"},
	{name: "two connections get one chunk", file: "driver/slab.go", old: "	l.free = l.free[:n]\n", new: ""},
	{name: "two connections get one element", file: "linkgroup/rmb.go", old: "	r.elems[i].used = true\n", new: "	r.elems[i].used = i > 0\n"},
	{name: "an element is free again at once after a failed rendezvous", file: "linkgroup/conn_rendezvous.go", old: "Discard(now.Add(g.cfg.Timers.AbortWait))", new: "Discard(time.Time{})"},
	{name: "an RMB is written with the RKey of another link", file: "linkgroup/member.go", old: "to := &m.peerRMB.at[m.link.slot]", new: "to := &m.peerRMB.at[0]"},
	{name: "send memory leaks", file: "conn/end.go", old: "	p.out.buf.freeAll(p.group)\n", new: ""},
	{name: "all link groups share one protection domain", file: "driver/memory.go", old: "	pd, err := dev.RDMA().AllocPD()\n	if err != nil {\n		return nil, err\n	}\n", new: "	if dev.All == nil {\n		pd, err := dev.RDMA().AllocPD()\n		if err != nil {\n			return nil, err\n		}\n		dev.All = pd\n	}\n	pd := dev.All\n"},
	// LLC (sections 3.5.4 and 3.5.5).
	{name: "the reply to DELETE LINK is lost", file: "linkgroup/llc_deletelink.go", old: "	via.sendLLC(wire.DeleteLink{Reply: true, LinkNum: l.id, Orderly: l.del.orderly, Reason: l.del.reason}, removeIt, l)\n", new: ""},
	{name: "a missing reply to TEST LINK has no effect", file: "linkgroup/llc_testlink.go", old: "	l.testing, l.testedAt = true, t.g.now\n", new: ""},
	{name: "CONFIRM RKEY leaves out the other links", file: "linkgroup/llc_rkey.go", old: "		if l != via {\n			rk.rest", new: "		if false {\n			rk.rest"},
	// Closing (section 4.8).
	{name: "the end is announced before the data is sent", file: "conn/transmit.go", old: "if !p.out.idle() || aborting(p.state) {", new: "if aborting(p.state) {"},
	{name: "the timer of a closed connection is not set", file: "conn/core.go", old: "	t.at = at\n	p.group.SetTimer(at)\n", new: "	if t != &p.closing.timer {\n		t.at = at\n	}\n	p.group.SetTimer(at)\n"},
	{name: "a reset is not answered", file: "conn/end.go", old: "	p.state = to\n", new: "	p.state = to\n	if to == smc.StateProcessAbort {\n		p.closing.sent |= 0x40\n		return\n	}\n"},
	{name: "a connection is counted on its old link", file: "linkgroup/conn.go", old: "	c.link.conns--\n	c.link = to\n", new: "	c.link = to\n"},
	// The engine and its carriers.
	{name: "a task that is scheduled between a round and the sleep is lost", file: "engine/loop.go", old: "if l.closed || l.away || l.pending() {", new: "if l.closed {"},
	{name: "an edge-triggered event that wakes a goroutine does not reach the engine", file: "engine/socket.go", old: "		s.changed.Broadcast()\n	}\n	s.mu.Unlock()\n	if hook", new: "		s.changed.Broadcast()\n		hook = nil\n	}\n	s.mu.Unlock()\n	if hook"},
	{name: "a partial write counts as a whole one", file: "driver/carrier.go", old: "c.core.Consumed(time.Now(), n)", new: "c.core.Consumed(time.Now(), len(a)+len(b))"},
	{name: "more is sent than was read", file: "driver/carrier.go", old: "			total, here = total+n, here+n\n", new: "			n = len(a)\n			total, here = total+n, here+n\n"},
	{name: "placed bytes are not sent if no more bytes follow", file: "conn/conn.go", old: "more := c.place(n) || s.placed\n", new: "more := c.place(n)\n"},
	{name: "a read that ends before an urgent byte counts as the last one", file: "driver/carrier.go", old: "			other = !plain\n", new: "			_ = plain\n"},
	{name: "the engine does not wait for room in the socket", file: "driver/carrier.go", old: "			k.sock.AwaitRoom()\n", new: ""},
	{name: "the end of the stream of a program is not passed on", file: "driver/carrier_ends.go", old: "		c.core.CloseWrite(time.Now())\n", new: "", quick: true},
	{name: "the end of the peer's stream is not passed on", file: "driver/carrier_ends.go", old: " || k.sock.CloseWrite() != nil {", new: " {"},
	{name: "the end of a stream overtakes the data before it", file: "driver/carrier.go", old: "			ended = true\n			return\n", new: "			k.endIn()\n			return\n"},
	{name: "a reset behind the end of a stream is not seen", file: "driver/carrier_ends.go", old: "case failed || up && !k.out.ended ||", new: "case false && (up || failed) ||"},
	{name: "a reset that comes after the end of a stream is not seen", file: "driver/carrier_ends.go", old: "	if up, _ := k.sock.HungUp(); up {\n		k.endRide()", new: "	if up, _ := k.sock.HungUp(); up && !up {\n		k.endRide()"},
	{name: "a closed connection ends although the program has written", file: "driver/carrier_ends.go", old: "	case n > 0:\n", new: "	case n < 0:\n"},
	{name: "room in the send buffer does not reach the engine", file: "driver/ending.go", old: "	c.Out.tell()\n	c.kick()\n}\n\nfunc (c *Conn) wakeUrgent", new: "	c.Out.tell()\n}\n\nfunc (c *Conn) wakeUrgent"},
}

// plantedSeeds is the number of seeds in which a bug must be caught.
const plantedSeeds = 3000

var (
	simCaught  = regexp.MustCompile(`(?m)seed (\d+) \((\w+)\): (.*)$`)
	simStarted = regexp.MustCompile(`(?m)^=== RUN   TestSimulation/(\d+)$`)
	simPanic   = regexp.MustCompile(`(?m)^(?:panic|fatal error): (.*)$`)
)

// TestPlantedBugs checks that the simulation finds the faults that it must find.
func TestPlantedBugs(t *testing.T) {
	testkind.System(t)
	if testing.Short() {
		t.Skip("builds the stack several times: run without -short")
	}
	want := regexp.MustCompile(*simPlant)
	if !slices.ContainsFunc(plantedBugs, func(b plantedBug) bool { return want.MatchString(b.name) }) {
		t.Fatalf("no bug matches %q", *simPlant)
	}
	for _, b := range plantedBugs {
		if *simPlant == "" && !b.quick || !want.MatchString(b.name) {
			continue
		}
		t.Run(strings.ReplaceAll(b.name, " ", "-"), func(t *testing.T) {
			t.Logf("caught: %s", b.search(t))
		})
	}
}

// search builds the stack with the bug and returns the failure that shows the bug.
func (b plantedBug) search(t *testing.T) string {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	bin := b.build(ctx, t)
	cmd := exec.CommandContext(ctx, bin, "-test.run", "^TestSimulation$", "-test.v", "-test.timeout", "5m",
		"-sim.first", "1", "-sim.seeds", fmt.Sprint(plantedSeeds), "-sim.lines", "0")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Fatalf("%d seeds pass with this bug", plantedSeeds)
	}
	if m := simCaught.FindSubmatch(out); m != nil {
		return fmt.Sprintf("seed %s (%s): %s", m[1], m[2], m[3])
	}
	started := simStarted.FindAllSubmatch(out, -1)
	if len(started) == 0 {
		t.Fatalf("%v\n%s", err, out)
	}
	what := err.Error()
	if m := simPanic.FindSubmatch(out); m != nil {
		if ctx.Err() != nil || strings.HasPrefix(string(m[1]), "test timed out") {
			t.Fatalf("the machine is too slow: %s", m[1])
		}
		what = "panic: " + string(m[1])
	}
	return fmt.Sprintf("seed %s: %s", started[len(started)-1][1], what)
}

// build compiles the tests of this package with the bug in the stack.
func (b plantedBug) build(ctx context.Context, t *testing.T) string {
	dir := t.TempDir()
	replace := map[string]string{}
	for file, src := range b.sources(t) {
		path, err := filepath.Abs(file)
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		if err := os.WriteFile(to, []byte(src), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[path] = to
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "planted.test")
	if out, err := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-overlay", list, "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return bin
}

// sources returns the files that the bug changes, with the bug in them.
func (b plantedBug) sources(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	plant := func(file, old, new string) {
		file = filepath.Join("..", file)
		src, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(src), old); n != 1 {
			t.Fatalf("%s has the text %q %d times, want exactly one: adapt the bug to the code", file, old, n)
		}
		out[file] = strings.Replace(string(src), old, new, 1)
	}
	plant(b.file, b.old, b.new)
	if strings.Contains(b.new, "dev.All") {
		plant("devices/port.go", "type Device struct {\n", "type Device struct {\n	All rdmaverbs.PD\n")
	}
	return out
}

// TestPlantedTexts checks that the code still has the text of every bug, also of bugs
// that are rarely built.
func TestPlantedTexts(t *testing.T) {
	for _, b := range plantedBugs {
		t.Run(strings.ReplaceAll(b.name, " ", "-"), func(t *testing.T) {
			for file, src := range b.sources(t) {
				if _, err := parser.ParseFile(token.NewFileSet(), file, src, parser.SkipObjectResolution); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
