// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/sysfs"
	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/stats"

	"github.com/google/go-cmp/cmp"
)

// sinkLog notes the calls of a Sink.
type sinkLog []string

func (s *sinkLog) Begin(st *Stack)             { *s = append(*s, "begin "+st.Name) }
func (s *sinkLog) Connection(c *nl.Connection) { *s = append(*s, c.Mode.String()) }
func (s *sinkLog) End()                        { *s = append(*s, "end") }

// old is a stack without some operations.
type old struct {
	nl.Control
	err error
}

func (o old) Stats(context.Context) (nl.Stats, error)              { return nl.Stats{}, o.err }
func (o old) Connections(context.Context) ([]nl.Connection, error) { return nil, o.err }

func reader(t *testing.T, m nl.Multi, err error) *Reader {
	root := t.TempDir()
	dir := filepath.Join(root, "class/infiniband/srx_eth0/ports/1/hw_counters")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "completer_retry_err"), []byte("3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return &Reader{
		Factory: &cmdutil.Factory{Backend: "auto", Dial: func(context.Context, string) (nl.Multi, error) { return m, err }},
		Sysfs:   sysfs.New(root),
	}
}

func TestRead(t *testing.T) {
	state := nltest.SampleState()
	state.Connections = state.Connections[:2]
	fake := func() nl.Control { return nltest.NewFake(state) }
	unsupported := &nl.OpError{Op: "ask", Backend: "user", Err: syscall.EOPNOTSUPP}
	r := reader(t, nl.Multi{{Name: Kernel, Control: fake()}, {Name: "user", Control: old{fake(), unsupported}}}, nil)
	r.Factory.Ending = func(context.Context) (nl.Multi, error) { return nl.Multi{{Name: "ending-1", Control: fake()}}, nil }
	var log sinkLog
	all, err := r.Read(t.Context(), &log)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sinkLog{"begin kernel", "SMCR", "SMCR", "end", "begin user", "end", "begin ending-1", "SMCR", "SMCR", "end"}, log); diff != "" {
		t.Errorf("connections: -want +got\n%s", diff)
	}
	if len(all) != 3 || all[1].Stats != (nl.Stats{}) || len(all[1].Links) == 0 || all[0].Stats == (nl.Stats{}) {
		t.Errorf("stacks: %+v", all)
	}
	// The kernel's device has its counter in sysfs, that of the other stacks is in the answer.
	for i, want := range []uint64{3, 1234, 1234} {
		if n, ok := all[i].Retransmits(); !ok || n != want {
			t.Errorf("%s: %d retransmissions, %v, want %d", all[i].Name, n, ok, want)
		}
	}
}

func TestReadErrors(t *testing.T) {
	if _, err := reader(t, nil, nl.ErrNoBackend).Read(t.Context(), nil); !errors.Is(err, nl.ErrNoBackend) {
		t.Errorf("no stack: %v", err)
	}
	gone := &nl.OpError{Op: "ask", Backend: "user", Err: syscall.ECONNRESET}
	m := nl.Multi{{Name: "user", Control: old{nltest.NewFake(nltest.SampleState()), gone}}}
	if all, err := reader(t, m, nil).Read(t.Context(), &sinkLog{}); err != gone || all != nil {
		t.Errorf("a stack that ends: %v, %v", all, err)
	}
}

func TestBetween(t *testing.T) {
	stack := func(pid uint32, bytes, fallbacks, again uint64) *Stack {
		s := &Stack{Info: nl.SysInfo{PID: pid}, Devices: []nl.Device{{Name: "a", Resent: &nl.Resent{Packets: again}}, {Name: "b"}}}
		s.Stats = nl.Stats{SMCR: stats.Tech{RXBytes: bytes, TXBytes: 2 * bytes, RXCalls: bytes / 10, ClientV2: bytes / 100}, ServerHandshakeErrors: bytes / 50}
		s.Fallbacks.ClientTotal = fallbacks
		return s
	}
	before := stack(1, 100, 5, 50)
	got, ok := Between(before, stack(1, 300, 9, 40), 2*time.Second)
	want := Rates{
		Rate:      stats.Rate{RXBytes: 100, TXBytes: 200, RXCalls: 10, Connections: 1},
		Fallbacks: 2, HandshakeErrors: 2, Retransmits: new(20.0),
	}
	if diff := cmp.Diff(want, got); !ok || diff != "" {
		t.Errorf("%v, -want +got\n%s", ok, diff)
	}
	silent := stack(1, 300, 9, 40)
	silent.Devices = silent.Devices[1:]
	if got, _ := Between(before, silent, time.Second); got.Retransmits != nil {
		t.Errorf("retransmissions that nobody counts: %v", *got.Retransmits)
	}
	for name, s := range map[string]struct {
		before, now *Stack
		elapsed     time.Duration
	}{
		"first":   {nil, before, time.Second},
		"no time": {before, before, 0},
		"other":   {before, stack(2, 300, 9, 40), time.Second},
	} {
		if r, ok := Between(s.before, s.now, s.elapsed); ok || r != (Rates{}) {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
