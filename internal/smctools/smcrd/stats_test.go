// SPDX-License-Identifier: Apache-2.0

package smcrd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/smctools/tool"
	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/smc"
	"smcr/stats"

	"github.com/google/go-cmp/cmp"
)

// A bench runs command lines on a stack of the test.
type bench struct {
	t     *testing.T
	fake  *nltest.Fake
	cache string
}

func newBench(t *testing.T, s nltest.State) *bench {
	return &bench{t, nltest.NewFake(s), filepath.Join(t.TempDir(), "cache")}
}

type keepOpen struct{ *nltest.Fake }

func (keepOpen) Close() error { return nil }

// env returns the environment of a program, with streams in memory.
func (b *bench) env() *tool.Env {
	streams, _, _, _ := cmdutil.MemoryStreams()
	return &tool.Env{
		Factory: &cmdutil.Factory{IO: streams, Backend: "kernel", Dial: func(context.Context, string) (nl.Multi, error) {
			return nl.Multi{{Name: "kernel", Control: keepOpen{b.fake}}}, nil
		}},
		UID: os.Getuid(),
		Getenv: func(name string) string {
			return map[string]string{CacheEnv: b.cache}[name]
		},
	}
}

func (b *bench) run(line string) (out, errOut string, status int) {
	b.t.Helper()
	words := strings.Fields(line)
	env := b.env()
	env.Name = words[0]
	streams, _, o, e := cmdutil.MemoryStreams()
	env.IO = streams
	status = Main(b.t.Context(), env, words[0] == "smcd", words[1:])
	return o.String(), e.String(), status
}

// want runs a command line and checks its output.
func (b *bench) want(line, want string) {
	b.t.Helper()
	out, errOut, status := b.run(line)
	if diff := cmp.Diff(want, out); diff != "" || errOut != "" || status != 0 {
		b.t.Errorf("%s: %d, %q (-want +got):\n%s", line, status, errOut, diff)
	}
}

// value returns the number on the line of a counter.
func (b *bench) value(line, name string) string {
	b.t.Helper()
	out, errOut, status := b.run(line)
	_, rest, found := strings.Cut(out, name)
	if !found || status != 0 || errOut != "" {
		b.t.Fatalf("%s: %d, %q, no %s in\n%s", line, status, errOut, name, out)
	}
	return strings.Fields(rest)[0]
}

// TestGauge checks a reset while connections exist: the buffer memory in use is a gauge,
// which falls when they close.
func TestGauge(t *testing.T) {
	s := nltest.State{}
	s.Stats.SMCR = stats.Tech{ServerV2: 3, RXBytes: 1000, RXUsage: 196608, TXUsage: 196608}
	b := newBench(t, s)
	b.run("smcr stats reset")
	s.Stats.SMCR = stats.Tech{ServerV2: 4, RXBytes: 1500, RXUsage: 65536}
	b.fake = nltest.NewFake(s)
	for name, want := range map[string]string{"SMC connections": "1", "(Bytes)": "500", "Buffer usage (Bytes)": "0"} {
		if got := b.value("smcr stats", name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if got := b.value("smcr -a stats", "Buffer usage (Bytes)"); got != "65536" {
		t.Errorf("absolute: %s", got)
	}
	if got := b.value("smcr stats", "SMC connections"); got != "1" {
		t.Errorf("the reset was lost: %s", got)
	}
}

// TestRestart checks that a reset does not apply to the next stack.
func TestRestart(t *testing.T) {
	s := nltest.State{}
	s.Stats.SMCR = stats.Tech{ServerV2: 3, RXBytes: 1000}
	b := newBench(t, s)
	b.run("smcr stats reset")
	s.Stats.SMCR = stats.Tech{ServerV2: 1, RXBytes: 2000}
	b.fake = nltest.NewFake(s)
	if got := b.value("smcr stats", "(Bytes)"); got != "2000" {
		t.Errorf("%s", got)
	}
	if _, err := os.Stat(b.cache); !os.IsNotExist(err) {
		t.Errorf("the cache file is still there: %v", err)
	}
}

// TestShared checks that a reset by smcd applies to smcr too, and that -a resets and
// shows everything.
func TestShared(t *testing.T) {
	s := nltest.State{}
	s.Stats.SMCR.RXBytes, s.Stats.SMCD.RXBytes = 7, 9
	s.Fallbacks = nl.Fallbacks{ClientTotal: 2, Reasons: []nl.Fallback{{Side: smc.Client, Reason: 0x03010000, Count: 2}}}
	b := newBench(t, s)
	if got := b.value("smcd -a stats reset", "(Bytes)"); got != "9" {
		t.Errorf("smcd: %s", got)
	}
	if got := b.value("smcr stats", "(Bytes)") + b.value("smcr stats", "TCP fallback"); got != "00" {
		t.Errorf("smcr: %s", got)
	}
	// A reason with a recorded count stays in the list.
	if got := b.value("smcr -d stats", "PEER_NO_SMC"); got != "0" {
		t.Errorf("reason: %s", got)
	}
}

// TestNumbers sets every counter to a different number, so that a counter that is missing
// in the cache file or in JSON is found.
func TestNumbers(t *testing.T) {
	s := nltest.State{}
	c := counters{}
	if len(names) != 65 || len(c.numbers()) != 132 {
		t.Fatalf("%d names, %d numbers", len(names), len(c.numbers()))
	}
	for i, n := range c.numbers() {
		*n = uint64(i + 1)
	}
	s.Stats = c.Stats
	b := newBench(t, s)
	b.run("smcr stats reset")
	lines, err := os.ReadFile(b.cache)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Count(string(lines), "\n"), 132+60+2; got != want {
		t.Errorf("%d lines, want %d", got, want)
	}
	var all strings.Builder
	for i, name := range names {
		fmt.Fprintf(&all, "%q:%d,", name, i+1)
	}
	b.want("smcr -a stats json", "{\"SMCR\": {"+strings.TrimSuffix(all.String(), ",")+"}}\n")
	out, _, _ := b.run("smcd stats json")
	if strings.Count(out, ":0") != 65 {
		t.Errorf("after reset: %s", out)
	}
	if info, err := os.Stat(b.cache); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("cache file: %v, %v", info.Mode(), err)
	}
}

// TestCacheErrors checks cache files that cannot be read.
func TestCacheErrors(t *testing.T) {
	b := newBench(t, nltest.State{})
	b.run("smcr stats reset")
	good, err := os.ReadFile(b.cache)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"x":                                 "Error: parsing cache file(stats): Success\n",
		"1           0\n":                   "Error: unexpected value in cache file: Success\n",
		string(good) + "one more":           "Error: cache file corrupt: Success\n",
		string(good[:len(good)-17]) + "x\n": "Error: parsing cache file(fback counters): Success\n",
		strings.Join(strings.SplitAfter(string(good), "\n")[:132], "") + "x": "Error: parsing cache file (fback stats): Success\n",
	} {
		if err := os.WriteFile(b.cache, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, errOut, status := b.run("smcr stats"); out != "" || errOut != want || status != tool.Failed {
			t.Errorf("%.20q: %d, %q, want %q", text, status, errOut, want)
		}
	}
	if err := os.Remove(b.cache); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", b.cache); err != nil {
		t.Fatal(err)
	}
	if _, errOut, status := b.run("smcr stats"); errOut != "Error: open cache file: Too many levels of symbolic links\n" || status != tool.Failed {
		t.Errorf("symbolic link: %d, %q", status, errOut)
	}
}

func TestAbbreviate(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0", 7: "7", 999: "999", 1000: "1.000K", 1175: "1.175K", 9999: "9.999K", 10000: "10.00K", 16384: "16.38K",
		99994: "99.99K", 99996: "100.0K", 196608: "196.6K", 999940: "999.9K", 999960: " 1000K", 2097152: "2.097M", 20840708: "20.84M",
		152043520: "152.0M", 9999999: "10.00M", 1234567890: "1.235G", 123456789012: "123.5G", 1 << 40: "1.100T",
		123456789012345: "123.5T", 1 << 50: "1.126P", 123456789012345678: "123.5P",
	} {
		if got := abbreviate(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

// TestPanics checks that counters that only the user-space stack has are shown if they
// are not zero.
func TestPanics(t *testing.T) {
	s := nltest.State{}
	b := newBench(t, s)
	if out, _, _ := b.run("smcr -a stats"); strings.Contains(out, "Panics") {
		t.Errorf("of none: %s", out)
	}
	s.Stats.Panics = 3
	b = newBench(t, s)
	if got := b.value("smcr -a stats", "Panics survived"); got != "3" {
		t.Errorf("%s panics shown", got)
	}
}
