// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/smc"
	"smcr/stats"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the metrics to testdata")

var noLog = slog.New(slog.DiscardHandler)

// of returns a source with these stacks.
func of(stacks ...Stack) Source { return func(context.Context) []Stack { return stacks } }

// user returns a fake of a stack in user space in a state.
func user(s nltest.State) Stack { return Stack{Name: "user", Control: nltest.NewFake(s)} }

// scrape returns what a scrape of the source answers, without the metrics of the process.
func scrape(t *testing.T, src Source) string {
	t.Helper()
	w := httptest.NewRecorder()
	Handler(src, noLog).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	var own strings.Builder
	for line := range strings.Lines(w.Body.String()) {
		if strings.Contains(line, namespace+"_") {
			own.WriteString(line)
		}
	}
	return own.String()
}

// want checks that an answer has these lines.
func want(t *testing.T, answer string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		if !strings.Contains("\n"+answer, "\n"+line+"\n") {
			t.Errorf("no line %q in\n%s", line, answer)
		}
	}
}

// TestSample compares the metrics of two stacks with a file. The end-to-end tests check the
// file with promtool.
func TestSample(t *testing.T) {
	s := nltest.SampleState()
	s.SysInfo.Stack, s.SysInfo.StackVersion = "smcr", "1.2.3"
	kernel := nltest.SampleState()
	kernel.SysInfo.Stack = ""
	kernel.Devices = kernel.Devices[1:]
	kernel.Stats = nl.Stats{SMCR: stats.Tech{ServerV1: 7, RXBytes: 1 << 40, RXSizes: stats.Histogram{8: 3}, NotCounted: stats.CountTXUsage | stats.CountTXSmall}}
	got := scrape(t, of(user(s), Stack{Name: "kernel", Control: nltest.NewFake(kernel)}))
	const file = "testdata/sample.prom"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(golden), got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	for line := range strings.Lines(got) {
		if strings.Contains(line, `stack="kernel"`) && (strings.Contains(line, "_engine_") || strings.Contains(line, "_duration_")) {
			t.Errorf("a kernel does not have %s", line)
		}
	}
}

// TestProcess: the process itself is shown, too.
func TestProcess(t *testing.T) {
	w := httptest.NewRecorder()
	Handler(of(), noLog).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, name := range []string{"process_cpu_seconds_total ", "process_open_fds ", "process_resident_memory_bytes ", "go_goroutines ", "smcr_stacks 0\n"} {
		if !strings.Contains(w.Body.String(), "\n"+name) {
			t.Errorf("no %s", name)
		}
	}
}

// TestOtherReasons: what a stack counts only in the total is not lost.
func TestOtherReasons(t *testing.T) {
	s := nltest.State{SysInfo: nl.SysInfo{Stack: "smcr"}, Fallbacks: nl.Fallbacks{ClientTotal: 10, Reasons: []nl.Fallback{
		{Reason: uint32(smc.DiagVLAN), Count: 2}, {Reason: 0x12345678, Count: 1}, {Reason: 0x12345679, Count: 3},
	}}}
	want(t, scrape(t, of(user(s))),
		`smcr_fallbacks_total{reason="other",side="client",stack="user"} 8`,
		`smcr_fallbacks_total{reason="vlan",side="client",stack="user"} 2`,
		`smcr_fallbacks_total{reason="other",side="server",stack="user"} 0`)
}

// TestPeerDeclines: the reasons of peers add up to the fallbacks peer_declined, also of a stack
// that does not tell them.
func TestPeerDeclines(t *testing.T) {
	s := nltest.State{SysInfo: nl.SysInfo{Stack: "smcr"}, Fallbacks: nl.Fallbacks{
		ClientTotal: 9, ServerTotal: 4,
		Reasons: []nl.Fallback{
			{Reason: uint32(smc.DiagPeerDeclined), Count: 8}, {Reason: uint32(smc.DiagMem), Count: 1},
			{Side: smc.Server, Reason: uint32(smc.DiagPeerDeclined), Count: 4},
		},
		PeerReasons: []nl.Fallback{{Reason: uint32(smc.DiagMem), Count: 5}, {Count: 3}},
	}}
	want(t, scrape(t, of(user(s))),
		`smcr_fallbacks_total{reason="peer_declined",side="client",stack="user"} 8`,
		`smcr_fallbacks_total{reason="no_memory",side="client",stack="user"} 1`,
		`smcr_peer_declines_total{reason="no_memory",side="client",stack="user"} 5`,
		`smcr_peer_declines_total{reason="other",side="client",stack="user"} 3`,
		`smcr_peer_declines_total{reason="other",side="server",stack="user"} 4`)
	s.SysInfo.Stack = ""
	if answer := scrape(t, of(Stack{Name: "kernel", Control: nltest.NewFake(s)})); strings.Contains(answer, "smcr_peer_declines_total") {
		t.Errorf("a kernel does not know the reasons of peers:\n%s", answer)
	}
}

// TestHostile: a stack that answers with much and with bad text adds a limited number of lines,
// all of which are text.
func TestHostile(t *testing.T) {
	s := nltest.State{SysInfo: nl.SysInfo{Stack: "evil\"\n\x1b[2J\xff", StackVersion: strings.Repeat("\u202e", 10)}}
	for i := range 20_000 {
		s.Devices = append(s.Devices, nl.Device{
			Name: fmt.Sprintf("soft-%d\xff\n", i), Provider: "softroce", Ports: make([]nl.Port, 2),
			Resent: &nl.Resent{Packets: 1}, Refused: nl.Refused{Key: 2}, UseCount: uint32(i) % 2,
		})
		s.LinkGroups = append(s.LinkGroups, nl.LinkGroup{ID: nl.LinkGroupID(i), Type: smc.GroupType(i), Conns: 3, PNETID: fmt.Sprint(i)})
		s.Links = append(s.Links, nl.Link{LinkGroup: nl.LinkGroupID(i), State: smc.LinkState(i)})
		s.Fallbacks.Reasons = append(s.Fallbacks.Reasons, nl.Fallback{Reason: uint32(i), Count: 1})
		s.Fallbacks.PeerReasons = append(s.Fallbacks.PeerReasons, nl.Fallback{Reason: uint32(i), Count: 1})
	}
	answer := scrape(t, of(user(s)))
	if n := strings.Count(answer, "\n"); n > 1000 {
		t.Errorf("%d lines", n)
	}
	if !utf8.ValidString(answer) || strings.ContainsAny(answer, "\x1b\u202e") {
		t.Error("the answer is not plain text")
	}
	want(t, answer, "smcr_connections{stack=\"user\"} 60000", `smcr_up{stack="user"} 1`,
		`smcr_links{stack="user",state="other"} 19996`,
		fmt.Sprintf(`smcr_retransmitted_packets_total{device="other",stack="user"} %d`, 20_000-maxDevices),
		`smcr_fallbacks_total{reason="other",side="client",stack="user"} 20000`,
		`smcr_peer_declines_total{reason="other",side="client",stack="user"} 20000`)
}

// TestUnreachable: a stack that does not answer does not hide the others.
func TestUnreachable(t *testing.T) {
	broken := nltest.NewFake(nltest.SampleState())
	broken.SetError(errors.New("broken"))
	good := nltest.NewFake(nltest.SampleState())
	answer := scrape(t, of(Stack{Name: "ending-1", Control: broken}, Stack{Name: "kernel", Err: os.ErrPermission}, Stack{Name: "user", Control: good}))
	want(t, answer, "smcr_stacks 3", `smcr_up{stack="ending-1"} 0`, `smcr_up{stack="kernel"} 0`, `smcr_up{stack="user"} 1`, `smcr_connections{stack="user"} 4`)
	if strings.Contains(answer, `{stack="kernel"`) && strings.Count(answer, `stack="kernel"`) != 1 || !broken.Closed() || !good.Closed() {
		t.Errorf("Controls are open, or a stack that is down has metrics:\n%s", answer)
	}
	shared := nltest.NewFake(nltest.SampleState())
	want(t, scrape(t, of(Shared("user", shared))), `smcr_up{stack="user"} 1`)
	if shared.Closed() {
		t.Error("a scrape closes a Control that others use")
	}
}

// TestKernelDevices: a kernel does not say how many link groups use a device; its links do.
func TestKernelDevices(t *testing.T) {
	s := nltest.State{
		Devices: []nl.Device{{Name: "rxe0"}, {Name: "rxe1"}, {Name: "rxe2"}},
		Links:   []nl.Link{{LinkGroup: 0x100, ID: 1, IBDev: "rxe0"}, {LinkGroup: 0x100, ID: 2, IBDev: "rxe1"}, {LinkGroup: 0x200, ID: 1, IBDev: "rxe0"}, {LinkGroup: 0x300, ID: 1, IBDev: "rxe0"}, {LinkGroup: 0x300, ID: 2, IBDev: "rxe0"}},
	}
	want(t, scrape(t, of(Stack{Name: "kernel", Control: nltest.NewFake(s)})),
		`smcr_device_link_groups{device="rxe0",stack="kernel"} 3`,
		`smcr_device_link_groups{device="rxe1",stack="kernel"} 1`,
		`smcr_device_link_groups{device="rxe2",stack="kernel"} 0`)
}

// TestOldKernel: a kernel without some questions is up, without their metrics.
func TestOldKernel(t *testing.T) {
	answer := scrape(t, of(Stack{Name: "kernel", Control: old{nltest.NewFake(nltest.SampleState())}}))
	want(t, answer, `smcr_up{stack="kernel"} 1`, `smcr_connections{stack="kernel"} 4`)
	if strings.Contains(answer, "bytes_total") || strings.Contains(answer, "fallbacks_total") {
		t.Errorf("counters that the kernel does not have:\n%s", answer)
	}
}

// old is a kernel without counters.
type old struct{ nl.Control }

func (old) Stats(context.Context) (nl.Stats, error) { return nl.Stats{}, nl.ErrNotSupported }
func (old) Fallbacks(context.Context) (nl.Fallbacks, error) {
	return nl.Fallbacks{}, nl.ErrNotSupported
}

// slow is a stack that does not answer. It tells begun about each question.
type slow struct {
	nl.Control
	begun chan struct{}
}

func (s slow) SysInfo(ctx context.Context) (nl.SysInfo, error) {
	if s.begun != nil {
		s.begun <- struct{}{}
	}
	<-ctx.Done()
	return nl.SysInfo{}, ctx.Err()
}

// TestSlow: stacks that do not answer do not stop a scrape for longer than its time.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []Stack
		for i := range 17 {
			all = append(all, Stack{Name: fmt.Sprint("ending-", i), Control: slow{Control: nltest.NewFake(nltest.State{})}})
		}
		began := time.Now()
		answer := scrape(t, of(append([]Stack{user(nltest.SampleState())}, all...)...))
		if took := time.Since(began); took > scrapeTime {
			t.Errorf("the scrape took %v", took)
		}
		want(t, answer, `smcr_up{stack="user"} 1`, `smcr_up{stack="ending-16"} 0`)
	})
}

// TestManyScrapes: more scrapes than a few get an error at once.
func TestManyScrapes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := make(chan struct{})
		h := Handler(of(Stack{Name: "user", Control: slow{nltest.NewFake(nltest.State{}), begun}}), noLog)
		codes := make(chan int, maxScrapes)
		for range maxScrapes {
			go func() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
				codes <- w.Code
			}()
			<-begun
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if w.Code != http.StatusServiceUnavailable {
			t.Errorf("status %d for one scrape too many", w.Code)
		}
		for range maxScrapes {
			if c := <-codes; c != http.StatusOK {
				t.Errorf("status %d", c)
			}
		}
	})
}

// TestNames checks the table: names are unique, and counters end in _total.
func TestNames(t *testing.T) {
	var names []string
	for _, f := range families {
		if slices.Contains(names, f.name) || f.help == "" || (f.read == nil) == (f.histogram == nil) {
			t.Errorf("%s is incomplete or twice in the table", f.name)
		}
		names = append(names, f.name)
	}
}
