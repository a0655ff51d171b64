// SPDX-License-Identifier: Apache-2.0

package page

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"smcr/internal/topology"
	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/smc"
)

// TestUsers: names come from the file, the first one of a user counts, and lines of another form
// are ignored. A new user is known after a while.
func TestUsers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		file := filepath.Join(t.TempDir(), "passwd")
		write := func(s string) {
			if err := os.WriteFile(file, []byte(s), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		write("root:x:0:0:root:/root:/bin/sh\ntoor:x:0:0::/root:/bin/sh\n# comment\n:x:5:5::/:\nshort:x:6\nbad:x:-7:7::/:\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false")
		u := &users{file: file}
		check := func(want map[uint32]string) {
			t.Helper()
			for uid, cell := range want {
				if got := userCell(uid, u.name); got != cell {
					t.Errorf("user %d: %q, want %q", uid, got, cell)
				}
			}
		}
		check(map[uint32]string{0: "root (0)", 5: "5", 6: "6", 7: "7", 65534: "nobody (65534)", 4294967295: "4294967295"})
		write("new:x:7:7::/:\n")
		check(map[uint32]string{0: "root (0)", 7: "7"})
		time.Sleep(usersAge + time.Second)
		check(map[uint32]string{0: "0", 7: "new (7)"})
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		time.Sleep(usersAge + time.Second)
		check(map[uint32]string{7: "7"})
	})
}

// TestConnectionRates: a connection has rates of its own from the second listing on; one that is
// not counted has none.
func TestConnectionRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := nltest.SampleState()
		fake := nltest.NewFake(s)
		c := &counting{ctl: fake}
		h := New(Config{Dial: c.dial, NetDev: netdev, User: user})
		rates := func() (cells []string) {
			for _, row := range stateOf(t, h, "").Connections.Rows {
				cells = append(cells, row[9])
			}
			return cells
		}
		if got := rates(); !slices.Equal(got, []string{"", ""}) {
			t.Errorf("the first listing: %q", got)
		}
		s = nltest.SampleState()
		s.Connections[1].TXBytes += 4 << 20
		s.Connections[1].RXBytes += 2 << 10
		c.ctl = nltest.NewFake(s)
		time.Sleep(2 * time.Second)
		if got := rates(); !slices.Equal(got, []string{"↑ 2.00 MiB/s ↓ 1.00 KiB/s", ""}) {
			t.Errorf("the second listing: %q", got)
		}
	})
}

// TestReasons: the state explains the reasons that its rows have, once each and by code, and no
// others. The text of each is that of the cells.
func TestReasons(t *testing.T) {
	s := nltest.SampleState()
	s.Fallbacks.Reasons = append(s.Fallbacks.Reasons, nl.Fallback{Side: smc.Server, Reason: 0x05000000, Count: 1}, nl.Fallback{Reason: 0x0fffffff, Count: 1})
	for i := range s.Connections {
		if s.Connections[i].Mode == nl.ModeTCP {
			s.Connections[i].Fallback = nl.ConnFallback{Reason: 0x05000000, Peer: 0x03030002}
		}
	}
	got := stateOf(t, of(s), "")
	var names []string
	for _, r := range got.Reasons {
		names = append(names, r.Name+" "+r.Code+" "+r.Text)
		if r.Cause == "" || len(r.Cure) == 0 || r.Title == "" {
			t.Errorf("%+v", r)
		}
	}
	want := []string{
		"confirm-link-timeout 0x02010000 timeout in CONFIRM LINK", "no-smcd-device 0x03030001 no SMC-D device",
		"no-smcr-device 0x03030002 no SMC-R device", "peer-declined 0x05000000 peer declined",
	}
	if !slices.Equal(names, want) {
		t.Errorf("reasons %q, want %q", names, want)
	}
	if row := got.Connections.Rows[1]; row[10] != "peer declined; peer: no SMC-R device" {
		t.Errorf("row %q", row)
	}
	// What the filter leaves out is not explained.
	s.Fallbacks.Reasons = nil
	if got := stateOf(t, of(s), "?filter=smcr"); len(got.Reasons) != 0 || len(got.Connections.Rows) != 1 {
		t.Errorf("with a filter: %+v", got.Reasons)
	}
}

// TestConnRates: without an earlier listing that fits, nothing is known.
func TestConnRates(t *testing.T) {
	l, err := topology.Read(t.Context(), "user", nltest.NewFake(nltest.SampleState()))
	if err != nil {
		t.Fatal(err)
	}
	if r := topology.ConnRates(&l, nil)(&l.Conns[1]); r != nil {
		t.Errorf("rates %+v", r)
	}
}
