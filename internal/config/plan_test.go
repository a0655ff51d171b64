// SPDX-License-Identifier: Apache-2.0

package config

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"smcr/nl"
	"smcr/nl/nltest"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// stack is a fake with a system enterprise ID whose changes can be made to fail.
type stack struct {
	nl.Control
	programs nl.Attacher
	changes  int   // the number of changes so far
	failAt   int   // the number of the change that fails, from 1; 0 for none
	broken   bool  // all changes after that one fail too
	err      error // the error of a change that fails
}

func newStack(t interface{ Fatal(...any) }, c *Config) *stack {
	fake := nltest.NewFake(nltest.State{
		SysInfo: nl.SysInfo{Version: 2}, SEID: nl.SEID{Value: "IBM-SYSZ-ISMSEID00000000", Enabled: true},
		Devices: []nl.Device{{Name: "mlx5_0"}},
	})
	s := &stack{Control: &kernelLike{fake}, programs: fake}
	if _, err := c.Apply(context.Background(), s); err != nil {
		t.Fatal(err)
	}
	s.changes, s.err = 0, syscall.EIO
	return s
}

func (s *stack) change(f func() error) error {
	s.changes++
	if s.failAt > 0 && (s.changes == s.failAt || s.broken && s.changes > s.failAt) {
		return s.err
	}
	return f()
}

func (s *stack) AddPNET(ctx context.Context, p nl.PNET) error {
	return s.change(func() error { return s.Control.AddPNET(ctx, p) })
}

func (s *stack) RemovePNET(ctx context.Context, id string) error {
	return s.change(func() error { return s.Control.RemovePNET(ctx, id) })
}

func (s *stack) AddUEID(ctx context.Context, eid string) error {
	return s.change(func() error { return s.Control.AddUEID(ctx, eid) })
}

func (s *stack) RemoveUEID(ctx context.Context, eid string) error {
	return s.change(func() error { return s.Control.RemoveUEID(ctx, eid) })
}

func (s *stack) SetSEID(ctx context.Context, on bool) error {
	return s.change(func() error { return s.Control.SetSEID(ctx, on) })
}

func (s *stack) SetHSLimitation(ctx context.Context, on bool) error {
	return s.change(func() error { return s.Control.SetHSLimitation(ctx, on) })
}

func (s *stack) Attachments(ctx context.Context) ([]nl.Attachment, error) {
	return s.programs.Attachments(ctx)
}

func (s *stack) Attach(ctx context.Context, a nl.Attachment) error {
	return s.change(func() error { return s.programs.Attach(ctx, a) })
}

func (s *stack) Detach(ctx context.Context, path string) error {
	return s.change(func() error { return s.programs.Detach(ctx, path) })
}

func (s *stack) Enter(ctx context.Context, who nl.Peer, always bool) (nl.Attachment, error) {
	return s.programs.Enter(ctx, who, always)
}

func (s *stack) Listen(ctx context.Context, who nl.Peer, fds []int) error {
	return s.programs.Listen(ctx, who, fds)
}

// kernelLike enables the system enterprise ID when the last user-defined one is removed,
// and returns EAGAIN then, like the kernel on s390.
type kernelLike struct{ nl.Control }

func (k *kernelLike) RemoveUEID(ctx context.Context, eid string) error {
	if err := k.Control.RemoveUEID(ctx, eid); err != nil {
		return err
	}
	left, err := k.UEIDs(ctx)
	if err != nil || len(left) > 0 {
		return err
	}
	if s, err := k.SEID(ctx); err != nil || s.Enabled {
		return err
	}
	if err := k.SetSEID(ctx, true); err != nil {
		return err
	}
	return syscall.EAGAIN
}

// state returns the configuration of a stack, with sorted tables.
func state(t interface{ Fatal(...any) }, ctl nl.Control) *Config {
	c, err := Export(context.Background(), ctl)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(c.PNETs, func(a, b nl.PNET) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	slices.Sort(c.UEIDs)
	return c
}

func parse(t *testing.T, s string) *Config {
	t.Helper()
	c, err := Parse([]byte(s))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestChanges(t *testing.T) {
	const before = `
pnetids: [{pnetid: A, netdev: eth0}, {pnetid: A, netdev: eth1}, {pnetid: B, ibdev: mlx5_0}]
ueids: [X, Y]
seid: false
handshake_limitation: true
programs: [{cgroup: /a, accept: false}, {cgroup: /b}]
`
	for _, test := range []struct {
		name, in string
		want     []string
	}{
		{"the same", before, nil},
		{"nothing said", "{}", nil},
		{"one device less", "pnetids: [{pnetid: A, netdev: eth1}, {pnetid: B, ibdev: mlx5_0}]", []string{"- pnetid A netdev eth0"}},
		{"another pnetid", "pnetids: [{pnetid: C, netdev: eth0}, {pnetid: A, netdev: eth1}, {pnetid: B, ibdev: mlx5_0, ibport: 2}]", []string{
			"- pnetid A netdev eth0", "- pnetid B ibdev mlx5_0 ibport 1", "+ pnetid C netdev eth0", "+ pnetid B ibdev mlx5_0 ibport 2",
		}},
		{"all gone", "pnetids: []\nueids: []\nseid: true\nhandshake_limitation: false\nprograms: []", []string{
			"- pnetid A netdev eth0", "- pnetid A netdev eth1", "- pnetid B ibdev mlx5_0 ibport 1",
			"= seid true", "- ueid X", "- ueid Y", "= handshake_limitation false",
			"- program /a", "- program /b",
		}},
		{"other programs", "programs: [{cgroup: /d, connect: false, adapt: false}, {cgroup: /a}, {cgroup: /c}]", []string{
			"- program /b", "+ program /d accept no-adapt", "= program /a", "+ program /c",
		}},
		{"the same program", "programs: [{cgroup: /b, adapt: true}, {cgroup: /a, connect: true, accept: false}]", nil},
		{"four other enterprise IDs", "ueids: [K, L, M, N]", []string{"- ueid X", "- ueid Y", "+ ueid K", "+ ueid L", "+ ueid M", "+ ueid N"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStack(t, parse(t, before))
			c := parse(t, test.in)
			plan, err := c.Plan(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, ch := range plan.Changes {
				got = append(got, ch.String())
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}
			if s.changes != 0 {
				t.Errorf("planning made %d changes", s.changes)
			}
			want := state(t, s)
			for _, f := range []func(){
				func() {
					if c.PNETs != nil {
						want.PNETs = c.PNETs
					}
				},
				func() {
					if c.UEIDs != nil {
						want.UEIDs = c.UEIDs
					}
				},
				func() {
					if c.SEID != nil {
						want.SEID = c.SEID
					}
				},
				func() {
					if c.HSLimitation != nil {
						want.HSLimitation = c.HSLimitation
					}
				},
				func() {
					if c.Programs != nil {
						want.Programs = slices.AppendSeq([]Program{}, slices.Values(c.Programs))
						slices.SortFunc(want.Programs, func(a, b Program) int { return strings.Compare(a.Cgroup, b.Cgroup) })
					}
				},
			} {
				f()
			}
			if err := plan.Apply(t.Context(), s); err != nil {
				t.Fatal(err)
			}
			less := cmpopts.SortSlices(func(a, b nl.PNET) bool { return fmt.Sprint(a) < fmt.Sprint(b) })
			if diff := cmp.Diff(want, state(t, s), less); diff != "" {
				t.Errorf("state (-want +got):\n%s", diff)
			}
		})
	}
}

// TestApplyAnything brings a stack from any state to any configuration, with a failure at
// any change: either all changes are made or none.
func TestApplyAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		start := anyConfig(t)
		// Complete makes it a state that a stack can have.
		start = start.Complete()
		if len(start.UEIDs) == 0 {
			start.SEID = nil
		}
		s := newStack(t, start)
		before := state(t, s)
		c := anyConfig(t)
		if c.SEID != nil && !*c.SEID && c.UEIDs == nil && len(before.UEIDs) == 0 {
			c.SEID = nil // the stack would refuse it
		}
		s.failAt = rapid.IntRange(0, 8).Draw(t, "fail at")
		changes, err := c.Apply(context.Background(), s)
		after := state(t, s)
		if err != nil {
			var failed *ApplyError
			if !errors.As(err, &failed) || !errors.Is(err, syscall.EIO) || failed.Undo != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Fatalf("after a failure (-before +after):\n%s", diff)
			}
			return
		}
		again, err := c.Plan(context.Background(), s)
		if err != nil || len(again.Changes) != 0 || len(again.steps) != 0 {
			t.Fatalf("after %v there is more to change: %v, %v", changes, again, err)
		}
		if s.failAt == 0 && len(changes) == 0 && s.changes != 0 {
			t.Fatalf("%d calls without a change", s.changes)
		}
	})
}

func TestUndoFails(t *testing.T) {
	s := newStack(t, parse(t, "pnetids: [{pnetid: A, netdev: eth0}]"))
	s.failAt, s.broken = 2, true
	_, err := parse(t, "pnetids: [{pnetid: B, netdev: eth0}]").Apply(t.Context(), s)
	var failed *ApplyError
	if !errors.As(err, &failed) || failed.Undo == nil {
		t.Fatal(err)
	}
	const want = "config: give pnetid B to eth0: input/output error; undoing the earlier changes failed too: give pnetid A to eth0: input/output error"
	if err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}

// TestCancelled checks that changes are undone even if the context has ended.
func TestCancelled(t *testing.T) {
	s := newStack(t, parse(t, "pnetids: [{pnetid: A, netdev: eth0}]"))
	before := state(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	plan, err := parse(t, "pnetids: [{pnetid: B, netdev: eth0}, {pnetid: B, netdev: eth1}]").Plan(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	s.Control = cancelAfter{s.Control, cancel}
	if err := plan.Apply(ctx, s); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, state(t, s)); diff != "" {
		t.Errorf("-before +after:\n%s", diff)
	}
}

type cancelAfter struct {
	nl.Control
	cancel context.CancelFunc
}

func (c cancelAfter) RemovePNET(ctx context.Context, id string) error {
	defer c.cancel()
	return c.Control.RemovePNET(ctx, id)
}

// limited is a stack that has only pnetids, like an old kernel.
type limited struct{ nl.Control }

func (limited) UEIDs(context.Context) ([]string, error) { return nil, nl.ErrNotSupported }
func (limited) SEID(context.Context) (nl.SEID, error)   { return nl.SEID{}, nl.ErrNotSupported }
func (limited) HSLimitation(context.Context) (bool, error) {
	return false, &nl.OpError{Err: syscall.EOPNOTSUPP}
}

func TestExport(t *testing.T) {
	s := newStack(t, parse(t, example))
	got, err := Export(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(parse(t, example), got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	got, err = Export(t.Context(), limited{s})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&Config{PNETs: parse(t, example).PNETs}, got); diff != "" {
		t.Errorf("limited stack (-want +got):\n%s", diff)
	}
	fake := nltest.NewFake(nltest.State{})
	fake.SetError(os.ErrPermission)
	if _, err := Export(t.Context(), fake); !errors.Is(err, os.ErrPermission) {
		t.Error(err)
	}
}

func TestUsable(t *testing.T) {
	c := parse(t, example)
	s := newStack(t, &Config{})
	netdev := func(name string) bool { return name == "eth0" }
	got, left, err := c.Usable(t.Context(), s, netdev)
	if err != nil {
		t.Fatal(err)
	}
	want := *c
	want.PNETs = []nl.PNET{{ID: "NET1", NetDev: "eth0"}, {ID: "NET1", IBDev: "mlx5_0", IBPort: 1}}
	if diff := cmp.Diff(&want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	wantLeft := []string{"pnetid NET2: this stack has no RoCE device mlx5_1", "pnetid 12: no netdev eth1 in this network namespace"}
	var texts []string
	for _, l := range left {
		texts = append(texts, l.Text)
	}
	if diff := cmp.Diff(wantLeft, texts); diff != "" {
		t.Errorf("left out (-want +got):\n%s", diff)
	}
	v1 := nltest.NewFake(nltest.State{SysInfo: nl.SysInfo{Version: 1}})
	got, left, err = (&Config{UEIDs: []string{"X"}, SEID: on(true), HSLimitation: on(true)}).Usable(t.Context(), v1, netdev)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&Config{HSLimitation: on(true)}, got); diff != "" || len(left) != 2 {
		t.Errorf("version 1: left out %v, -want +got:\n%s", left, diff)
	}
}
