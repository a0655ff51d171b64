// SPDX-License-Identifier: Apache-2.0

package pnet

import (
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestNormalize(t *testing.T) {
	for in, want := range map[string]string{
		"NET1": "NET1", "net1": "NET1", " Net1 ": "NET1", "1234567890123456": "1234567890123456", "a": "A",
		"": "", " ": "", "12345678901234567": "", "A-B": "", "A B": "", "A_B": "", "Ä": "", "A\x00": "", "A\t": "",
	} {
		got, err := Normalize(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("Normalize(%q) = %q, %v, want %q", in, got, err, want)
		}
		if err != nil && !errors.Is(err, os.ErrInvalid) {
			t.Errorf("Normalize(%q): %v does not match os.ErrInvalid", in, err)
		}
	}
}

// TestTable follows the dialogue of smc_pnet with Linux 6.12.107 that was
// recorded for this purpose, except that nothing is half done.
func TestTable(t *testing.T) {
	var tb Table
	for _, step := range []struct {
		add  Entry
		want error
	}{
		{Entry{ID: "SMC1", NetDev: "eth0"}, nil},
		{Entry{ID: "SMC1", NetDev: "eth0"}, os.ErrExist},
		{Entry{ID: "SMC2", NetDev: "eth0"}, os.ErrExist},
		{Entry{ID: "SMC1", IBDev: "rxe0"}, nil},
		{Entry{ID: "SMC1", IBDev: "rxe0", IBPort: 1}, os.ErrExist},
		{Entry{ID: "SMC2", IBDev: "rxe0", IBPort: 2}, os.ErrExist},
		{Entry{ID: "NETX", NetDev: "nosuch0"}, nil},
		{Entry{ID: "IBX", IBDev: "nosuchib"}, nil},
		{Entry{ID: "IBX", IBDev: "rxe9", IBPort: 3}, os.ErrInvalid},
		{Entry{ID: "12345678901234567", NetDev: "eth9"}, os.ErrInvalid},
		{Entry{ID: "1234567890123456", NetDev: "lo"}, nil},
		{Entry{ID: "lower", NetDev: "nosuch1"}, nil},
		{Entry{ID: "BAD-ID", NetDev: "nosuch2"}, os.ErrInvalid},
		{Entry{ID: "TOOLONGIF", NetDev: "abcdefghijklmnopq"}, os.ErrInvalid},
		{Entry{ID: "TOOLONGIB", IBDev: strings.Repeat("x", 64)}, os.ErrInvalid},
		{Entry{ID: "NONE"}, os.ErrInvalid},
		{Entry{ID: "NUL", NetDev: "a\x00b"}, os.ErrInvalid},
		{Entry{ID: "BOTH", NetDev: "nosuch5", IBDev: "rxe1"}, nil},
		{Entry{ID: "BOTH", NetDev: "nosuch5", IBDev: "rxe1"}, os.ErrExist},
		{Entry{ID: "BOTH", NetDev: "nosuch5", IBDev: "rxe2"}, nil},          // one half is new
		{Entry{ID: "OTHER", NetDev: "nosuch5", IBDev: "rxe3"}, os.ErrExist}, // and is not stored alone
	} {
		if err := tb.Add(step.add); !errors.Is(err, step.want) {
			t.Errorf("Add(%+v): %v, want %v", step.add, err, step.want)
		}
	}
	want := []Entry{
		{ID: "SMC1", NetDev: "eth0"},
		{ID: "SMC1", IBDev: "rxe0", IBPort: 1},
		{ID: "NETX", NetDev: "nosuch0"},
		{ID: "IBX", IBDev: "nosuchib", IBPort: 1},
		{ID: "1234567890123456", NetDev: "lo"},
		{ID: "LOWER", NetDev: "nosuch1"},
		{ID: "BOTH", NetDev: "nosuch5"},
		{ID: "BOTH", IBDev: "rxe1", IBPort: 1},
		{ID: "BOTH", IBDev: "rxe2", IBPort: 1},
	}
	if diff := cmp.Diff(want, tb.Entries()); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
	for _, id := range []string{"NOPE", "BAD-ID", "lower", ""} {
		if err := tb.Remove(id); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("Remove(%q): %v", id, err)
		}
	}
	if err := tb.Remove("BOTH"); err != nil || len(tb.Entries()) != 6 {
		t.Errorf("Remove: %v, %d entries remain", err, len(tb.Entries()))
	}
	tb.Flush()
	if s := tb.Entries(); len(s) != 0 {
		t.Errorf("after Flush: %v", s)
	}
}

// TestTableModel checks random additions and removals against the rules: no
// device twice, and no change when an error is returned.
func TestTableModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tb Table
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			before := tb.Entries()
			id := rapid.SampledFrom([]string{"A", "b", "C1", "", "-"}).Draw(t, "id")
			var err error
			if rapid.Bool().Draw(t, "add") {
				err = tb.Add(Entry{
					ID:     id,
					NetDev: rapid.SampledFrom([]string{"", "eth0", "eth1"}).Draw(t, "netdev"),
					IBDev:  rapid.SampledFrom([]string{"", "rxe0", "rxe1"}).Draw(t, "ibdev"),
					IBPort: rapid.Uint8Range(0, 3).Draw(t, "port"),
				})
			} else {
				err = tb.Remove(id)
			}
			after := tb.Entries()
			if diff := cmp.Diff(before, after); (diff == "") != (err != nil) {
				t.Fatalf("error %v with change %s", err, diff)
			}
			seen := map[Entry]bool{}
			for _, e := range after {
				device := Entry{NetDev: e.NetDev, IBDev: e.IBDev}
				if seen[device] || (e.NetDev == "") == (e.IBDev == "") {
					t.Fatalf("entry %+v in %+v", e, after)
				}
				seen[device] = true
			}
		}
	})
}

func TestMatch(t *testing.T) {
	ports := []Port{
		{Device: "rxe0", Port: 1, NetDev: "eth0", Active: true},
		{Device: "rxe1", Port: 1, NetDev: "eth1", Active: true},
		{Device: "mlx5_0", Port: 1, NetDev: "eth2", Hardware: "HW", Active: true},
		{Device: "mlx5_0", Port: 2, NetDev: "eth3", Hardware: "HW"},
		{Device: "rxe4", Port: 1, Active: true},
	}
	for _, test := range []struct {
		name   string
		table  []Entry
		netdev NetDev
		want   string // devices/ports
		wantID string
	}{
		{"no pnetid: the device on the route", nil, NetDev{Name: "eth1"}, "rxe1/1", ""},
		{"no pnetid, no device", nil, NetDev{Name: "lo"}, "", ""},
		{"no pnetid, a VLAN", nil, NetDev{Name: "eth1.7", Lower: []string{"eth1"}}, "rxe1/1", ""},
		{"pnetid on both", []Entry{{ID: "A", NetDev: "eth9"}, {ID: "A", IBDev: "rxe0"}}, NetDev{Name: "eth9"}, "rxe0/1", "A"},
		{"pnetid of another network", []Entry{{ID: "A", NetDev: "eth0"}, {ID: "B", IBDev: "rxe0"}}, NetDev{Name: "eth0"}, "", "A"},
		{"pnetid of the port's network device", []Entry{{ID: "A", NetDev: "eth9"}, {ID: "A", NetDev: "eth1"}}, NetDev{Name: "eth9"}, "", "A"},
		{
			"own device first", []Entry{{ID: "A", NetDev: "eth1"}, {ID: "A", IBDev: "rxe0"}, {ID: "A", IBDev: "rxe1"}, {ID: "A", IBDev: "rxe4"}},
			NetDev{Name: "eth1"}, "rxe1/1 rxe0/1 rxe4/1", "A",
		},
		{"VLAN takes the pnetid beneath", []Entry{{ID: "A", NetDev: "eth0"}, {ID: "A", IBDev: "rxe1"}}, NetDev{Name: "eth0.7", Lower: []string{"eth0"}}, "rxe1/1", "A"},
		{"hardware pnetid, one port down", nil, NetDev{Name: "eth5", Hardware: "HW"}, "mlx5_0/1", "HW"},
		{"port 2 of the entry", []Entry{{ID: "A", NetDev: "eth9"}, {ID: "A", IBDev: "rxe0", IBPort: 2}}, NetDev{Name: "eth9"}, "", "A"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var tb Table
			for _, e := range test.table {
				if err := tb.Add(e); err != nil {
					t.Fatal(err)
				}
			}
			got, id := tb.Match(test.netdev, ports)
			var names []string
			for _, p := range got {
				names = append(names, p.Device+"/"+string('0'+rune(p.Port)))
			}
			if s := strings.Join(names, " "); s != test.want || id != test.wantID {
				t.Errorf("got %q, pnetid %q; want %q, %q", s, id, test.want, test.wantID)
			}
		})
	}
}

// TestSoftware checks that a port in software is in the physical network of its
// network device.
func TestSoftware(t *testing.T) {
	ports := []Port{
		{Device: "soft-eth0", Port: 1, NetDev: "eth0", Active: true, Software: true},
		{Device: "soft-eth1", Port: 1, NetDev: "eth1", Active: true, Software: true},
		{Device: "soft-eth0.7", Port: 1, NetDev: "eth0.7", Active: true, Software: true},
	}
	vlan := NetDev{Name: "eth0.7", Lower: []string{"eth0"}}
	for _, test := range []struct {
		name   string
		table  []Entry
		netdev NetDev
		want   string
	}{
		{"of its network device", []Entry{{ID: "A", NetDev: "eth0"}}, NetDev{Name: "eth0"}, "soft-eth0"},
		{"of two network devices", []Entry{{ID: "A", NetDev: "eth0"}, {ID: "A", NetDev: "eth1"}}, NetDev{Name: "eth1"}, "soft-eth1 soft-eth0"},
		{"of others", []Entry{{ID: "A", NetDev: "eth0"}, {ID: "B", NetDev: "eth1"}}, NetDev{Name: "eth1"}, "soft-eth1"},
		{"of its own", []Entry{{ID: "A", NetDev: "eth0"}, {ID: "B", IBDev: "soft-eth0"}}, NetDev{Name: "eth0"}, ""},
		{"named ports count alone", []Entry{{ID: "A", NetDev: "eth0"}, {ID: "A", IBDev: "soft-eth1"}}, NetDev{Name: "eth0"}, "soft-eth1"},
		{"of the device beneath", []Entry{{ID: "A", NetDev: "eth0"}}, vlan, "soft-eth0"},
		{"of the VLAN", []Entry{{ID: "A", NetDev: "eth0.7"}}, vlan, "soft-eth0.7"},
		{"of none", nil, NetDev{Name: "eth1"}, "soft-eth1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var tb Table
			for _, e := range test.table {
				if err := tb.Add(e); err != nil {
					t.Fatal(err)
				}
			}
			var names []string
			got, _ := tb.Match(test.netdev, ports)
			for _, p := range got {
				names = append(names, p.Device)
			}
			if s := strings.Join(names, " "); s != test.want {
				t.Errorf("got %q, want %q", s, test.want)
			}
		})
	}
}

func TestConcurrent(t *testing.T) {
	var tb Table
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 200 {
				tb.Add(Entry{ID: "A", NetDev: "eth" + string('0'+rune(i))})
				tb.Match(NetDev{Name: "eth0"}, []Port{{Device: "rxe0", Port: 1, NetDev: "eth0", Active: true}})
				tb.Remove("A")
			}
		})
	}
	wg.Wait()
}
