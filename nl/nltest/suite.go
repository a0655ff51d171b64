// SPDX-License-Identifier: Apache-2.0

package nltest

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"smcr/nl"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// Options are the options of [RunControlSuite].
type Options struct {
	// NetDev is a network device that exists for the stack. The default is "lo".
	NetDev string

	// ReadOnly omits tests that change the state: for a Control without privilege, or
	// whose state belongs to somebody else.
	ReadOnly bool
}

// RunControlSuite checks the documented behaviour of every [nl.Control]. The function
// open returns a new Control whose stack has no other user. The suite closes it, and
// removes the state that it has made.
func RunControlSuite(t *testing.T, open func(*testing.T) nl.Control, opts Options) {
	if opts.NetDev == "" {
		opts.NetDev = "lo"
	}
	run := func(name string, fn func(*testing.T, context.Context, nl.Control)) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			c := open(t)
			defer c.Close()
			fn(t, ctx, c)
		})
	}
	run("SysInfo", testSysInfo)
	run("Consistency", testConsistency)
	run("Context", testContext)
	if !opts.ReadOnly {
		run("Deletion", testDeletion)
		run("Trace", testTrace)
		run("Attachments", testAttachments)
		run("Learnt", testLearnt)
		run("UEID", testUEID)
		run("HSLimitation", testHSLimitation)
		run("PNET", func(t *testing.T, ctx context.Context, c nl.Control) { testPNET(t, ctx, c, opts.NetDev) })
	}
	t.Run("Close", func(t *testing.T) {
		c := open(t)
		if err := c.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
		if _, err := c.SysInfo(t.Context()); err == nil {
			t.Error("SysInfo after Close: no error")
		}
	})
}

func must[T any](t *testing.T, what string, get func() (T, error)) T {
	t.Helper()
	v, err := get()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	return v
}

func check(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func checkIs(t *testing.T, what string, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: got error %v, want one that matches %v", what, err, target)
	}
}

func testSysInfo(t *testing.T, ctx context.Context, c nl.Control) {
	s := must(t, "SysInfo", func() (nl.SysInfo, error) { return c.SysInfo(ctx) })
	if s.Version < 1 {
		t.Errorf("SMC version %d", s.Version)
	}
	if len(s.LocalHost) > 32 || strings.TrimSpace(s.LocalHost) != s.LocalHost {
		t.Errorf("host name %q", s.LocalHost)
	}
	seid := must(t, "SEID", func() (nl.SEID, error) { return c.SEID(ctx) })
	if seid.Value == "" {
		checkIs(t, "SetSEID without SEID", c.SetSEID(ctx, true), nl.ErrNotSupported)
	}
}

// testConsistency checks that the rows of the tables refer to existing rows.
func testConsistency(t *testing.T, ctx context.Context, c nl.Control) {
	groups := must(t, "LinkGroups", func() ([]nl.LinkGroup, error) { return c.LinkGroups(ctx) })
	links := must(t, "Links", func() ([]nl.Link, error) { return c.Links(ctx) })
	devices := must(t, "Devices", func() ([]nl.Device, error) { return c.Devices(ctx) })
	conns := must(t, "Connections", func() ([]nl.Connection, error) { return c.Connections(ctx) })
	must(t, "Stats", func() (nl.Stats, error) { return c.Stats(ctx) })
	must(t, "Fallbacks", func() (nl.Fallbacks, error) { return c.Fallbacks(ctx) })

	byID := map[nl.LinkGroupID]nl.LinkGroup{}
	for _, g := range groups {
		if _, dup := byID[g.ID]; dup {
			t.Errorf("two link groups %v", g.ID)
		}
		byID[g.ID] = g
	}
	names := map[string]bool{}
	for _, d := range devices {
		names[d.Name] = true
		if len(d.Ports) == 0 {
			t.Errorf("device %s has no port", d.Name)
		}
	}
	seen := map[nl.LinkGroupID]bool{}
	for i, l := range links {
		g, ok := byID[l.LinkGroup]
		if !ok {
			t.Errorf("link %d belongs to link group %v, which does not exist", l.ID, l.LinkGroup)
		}
		if l.Role != g.Role || l.Type != g.Type {
			t.Errorf("link %d says %v %v, its link group %v %v", l.ID, l.Role, l.Type, g.Role, g.Type)
		}
		if i > 0 && links[i-1].LinkGroup != l.LinkGroup && seen[l.LinkGroup] {
			t.Errorf("the links of link group %v are not side by side", l.LinkGroup)
		}
		seen[l.LinkGroup] = true
		if !names[l.IBDev] {
			t.Errorf("link %d uses device %q, which does not exist", l.ID, l.IBDev)
		}
	}
	for _, x := range conns {
		if x.Mode != nl.ModeTCP && x.Link != nil && !names[x.Link.IBDev] {
			t.Errorf("connection %v uses device %q, which does not exist", x.Local, x.Link.IBDev)
		}
	}
}

func testContext(t *testing.T, ctx context.Context, c nl.Control) {
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := c.LinkGroups(ended); err == nil {
		t.Error("LinkGroups with a context that ended: no error")
	}
	// The Control still works.
	_, err := c.LinkGroups(ctx)
	check(t, "LinkGroups", err)
}

// supported skips a test if the stack does not support an operation.
func supported(t *testing.T, what string, err error) {
	t.Helper()
	if errors.Is(err, nl.ErrNotSupported) {
		t.Skipf("the stack does not support it: %s: %v", what, err)
	}
}

func testUEID(t *testing.T, ctx context.Context, c nl.Control) {
	before := must(t, "UEIDs", func() ([]string, error) { return c.UEIDs(ctx) })
	supported(t, "AddUEID", c.AddUEID(ctx, "PROBE"))
	defer func() {
		check(t, "FlushUEID", c.FlushUEID(ctx))
		for _, e := range before {
			check(t, "AddUEID", c.AddUEID(ctx, e))
		}
	}()
	check(t, "FlushUEID", c.FlushUEID(ctx))
	check(t, "FlushUEID of an empty table", c.FlushUEID(ctx))

	want := []string{"T1", "T.2", "T-3", "12345678901234567890123456789012"}
	for i, e := range want {
		check(t, "AddUEID", c.AddUEID(ctx, e))
		if i == 0 {
			checkIs(t, "AddUEID again", c.AddUEID(ctx, e), os.ErrExist)
		}
	}
	checkIs(t, "AddUEID to a full table", c.AddUEID(ctx, "T5"), syscall.ERANGE)
	checkIs(t, "AddUEID again to a full table", c.AddUEID(ctx, "T1"), syscall.ERANGE)
	for _, bad := range []string{"", " ", "lower", "A..B", ".A", "-A", "A B", "A_B", "123456789012345678901234567890123"} {
		checkIs(t, "AddUEID "+bad, c.AddUEID(ctx, bad), os.ErrInvalid)
	}
	got := must(t, "UEIDs", func() ([]string, error) { return c.UEIDs(ctx) })
	if diff := cmp.Diff(want, got, cmpopts.SortSlices(strings.Compare)); diff != "" {
		t.Errorf("UEIDs (-want +got):\n%s", diff)
	}
	check(t, "RemoveUEID", c.RemoveUEID(ctx, "T1"))
	checkIs(t, "RemoveUEID again", c.RemoveUEID(ctx, "T1"), os.ErrNotExist)
}

func testHSLimitation(t *testing.T, ctx context.Context, c nl.Control) {
	before := must(t, "HSLimitation", func() (bool, error) { return c.HSLimitation(ctx) })
	supported(t, "SetHSLimitation", c.SetHSLimitation(ctx, before))
	for _, want := range []bool{!before, before} {
		check(t, "SetHSLimitation", c.SetHSLimitation(ctx, want))
		if got := must(t, "HSLimitation", func() (bool, error) { return c.HSLimitation(ctx) }); got != want {
			t.Errorf("HSLimitation: got %v, want %v", got, want)
		}
	}
}

// testDeletion looks only for what does not exist: the Control may belong to a stack with
// connections. The kernel deletes neither link groups nor links.
func testDeletion(t *testing.T, ctx context.Context, c nl.Control) {
	const none = nl.LinkGroupID(0xfffffe00)
	if errors.Is(c.DeleteLinkGroup(ctx, none), nl.ErrNotSupported) {
		checkIs(t, "DeleteLink of a stack that deletes no link groups", c.DeleteLink(ctx, none, 1), nl.ErrNotSupported)
		return
	}
	checkIs(t, "DeleteLinkGroup of an unknown link group", c.DeleteLinkGroup(ctx, none), os.ErrNotExist)
	checkIs(t, "DeleteLink of an unknown link group", c.DeleteLink(ctx, none, 1), os.ErrNotExist)
}

func testTrace(t *testing.T, ctx context.Context, c nl.Control) {
	x, err := c.Trace(ctx, nl.TraceRequest{Types: nl.TraceCLC | nl.TraceRoCE})
	if errors.Is(err, nl.ErrNotSupported) {
		return // Linux has no traces
	}
	check(t, "Trace", err)
	if x.ID == 0 || len(x.Events) != 0 {
		t.Errorf("Trace that begins: %+v", x)
	}
	more := must(t, "Trace", func() (nl.Trace, error) { return c.Trace(ctx, nl.TraceRequest{ID: x.ID}) })
	last := must(t, "end of Trace", func() (nl.Trace, error) { return c.Trace(ctx, nl.TraceRequest{ID: x.ID, End: true}) })
	if more.ID != x.ID || last.ID != x.ID {
		t.Errorf("Trace %d: %+v, %+v", x.ID, more, last)
	}
	for _, end := range []bool{false, true} {
		_, err := c.Trace(ctx, nl.TraceRequest{ID: x.ID, End: end})
		checkIs(t, "Trace after its end", err, os.ErrNotExist)
	}
	_, err = c.Trace(ctx, nl.TraceRequest{})
	checkIs(t, "Trace without types", err, syscall.EINVAL)
}

// testLearnt asks for what cannot be caused here: peers with whom SMC was of no use.
func testLearnt(t *testing.T, ctx context.Context, c nl.Control) {
	l, ok := c.(nl.Learner)
	if !ok {
		return
	}
	all, err := l.Learnt(ctx)
	if errors.Is(err, nl.ErrNotSupported) {
		return
	}
	check(t, "Learnt", err)
	for _, l := range all {
		if !l.Remote.Addr().IsValid() || l.Why == 0 || l.Left < 0 {
			t.Errorf("Learnt: %+v", l)
		}
	}
}

// testAttachments uses a cgroup that does not exist, and no Enter, which would move this process.
func testAttachments(t *testing.T, ctx context.Context, c nl.Control) {
	a, ok := c.(nl.Attacher)
	if !ok {
		return
	}
	before, err := a.Attachments(ctx)
	if errors.Is(err, nl.ErrNotSupported) {
		checkIs(t, "Attach", a.Attach(ctx, nl.Attachment{Path: "/x", Accept: true}), nl.ErrNotSupported)
		return // the programs of this stack do not keep their sockets
	}
	check(t, "Attachments", err)
	const path = "/smcr-suite.slice/none.service"
	for _, accept := range []bool{true, false} {
		check(t, "Attach", a.Attach(ctx, nl.Attachment{Path: path, Connect: true, Accept: accept}))
		got := must(t, "Attachments", func() ([]nl.Attachment, error) { return a.Attachments(ctx) })
		i := slices.IndexFunc(got, func(a nl.Attachment) bool { return a.Path == path })
		if len(got) != len(before)+1 || i < 0 || !got[i].Connect || got[i].Accept != accept || got[i].Run || got[i].Cgroup != 0 {
			t.Errorf("Attachments: %+v, before: %+v", got, before)
		}
	}
	check(t, "Detach", a.Detach(ctx, path))
	checkIs(t, "Detach again", a.Detach(ctx, path), os.ErrNotExist)
	for _, wrong := range []string{"x", "", "/a/../b", "/a/"} {
		checkIs(t, "Attach "+wrong, a.Attach(ctx, nl.Attachment{Path: wrong, Accept: true}), os.ErrInvalid)
	}
	checkIs(t, "Attach without a side", a.Attach(ctx, nl.Attachment{Path: path}), os.ErrInvalid)
	after := must(t, "Attachments", func() ([]nl.Attachment, error) { return a.Attachments(ctx) })
	if diff := cmp.Diff(before, after, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("Attachments (-before +after):\n%s", diff)
	}
}

func testPNET(t *testing.T, ctx context.Context, c nl.Control, netdev string) {
	list := func() []nl.PNET {
		t.Helper()
		return must(t, "PNETs", func() ([]nl.PNET, error) { return c.PNETs(ctx) })
	}
	if s := list(); len(s) > 0 {
		t.Skipf("the table holds %v, which the suite would lose", s)
	}
	defer func() { check(t, "FlushPNET", c.FlushPNET(ctx)) }()

	check(t, "FlushPNET of an empty table", c.FlushPNET(ctx))
	check(t, "AddPNET", c.AddPNET(ctx, nl.PNET{ID: "net1", NetDev: netdev}))
	checkIs(t, "AddPNET again", c.AddPNET(ctx, nl.PNET{ID: "NET1", NetDev: netdev}), os.ErrExist)
	checkIs(t, "AddPNET with another pnetid", c.AddPNET(ctx, nl.PNET{ID: "NET2", NetDev: netdev}), os.ErrExist)
	want := []nl.PNET{{ID: "NET1", NetDev: netdev}}
	if diff := cmp.Diff(want, list()); diff != "" {
		t.Errorf("PNETs (-want +got):\n%s", diff)
	}
	for _, id := range []string{"", "A-B", "A B", "12345678901234567"} {
		if err := c.AddPNET(ctx, nl.PNET{ID: id, NetDev: "nosuch0"}); err == nil || errors.Is(err, os.ErrExist) {
			t.Errorf("AddPNET %q: got error %v, want a refusal of the pnetid", id, err)
		}
	}
	// The kernel reports that this entry exists.
	if err := c.AddPNET(ctx, nl.PNET{ID: "NET1"}); err == nil {
		t.Error("AddPNET without device: no error")
	}
	checkIs(t, "AddPNET with port 3", c.AddPNET(ctx, nl.PNET{ID: "NET1", IBDev: "nosuch", IBPort: 3}), os.ErrInvalid)
	checkIs(t, "RemovePNET of an unknown pnetid", c.RemovePNET(ctx, "NOPE"), os.ErrNotExist)
	check(t, "RemovePNET", c.RemovePNET(ctx, "NET1"))
	if s := list(); len(s) != 0 {
		t.Errorf("PNETs after RemovePNET: %v", s)
	}
}
