// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"smcr/nl"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func on(v bool) *bool { return &v }

const example = `# Two networks.
pnetids:
  - pnetid: net1
    netdev: eth0
    ibdev: mlx5_0
  - {pnetid: NET2, ibdev: mlx5_1, ibport: 2}
  - {pnetid: 12, netdev: "eth1"}
ueids:
  - EXAMPLE.COM-1
  - "NO"
seid: false
handshake_limitation: true
programs:
  - cgroup: /system.slice/nginx.service
    accept: false
`

func TestParse(t *testing.T) {
	for _, test := range []struct {
		name, in string
		want     Config
	}{
		{"nothing", "", Config{}},
		{"a comment", "# nothing\n", Config{}},
		{"no keys", "{}", Config{}},
		{"everything", example, Config{
			PNETs: []nl.PNET{
				{ID: "NET1", NetDev: "eth0"},
				{ID: "NET1", IBDev: "mlx5_0", IBPort: 1},
				{ID: "NET2", IBDev: "mlx5_1", IBPort: 2},
				{ID: "12", NetDev: "eth1"},
			},
			UEIDs: []string{"EXAMPLE.COM-1", "NO"}, SEID: on(false), HSLimitation: on(true),
			Programs: []Program{{Cgroup: "/system.slice/nginx.service", Connect: true}},
		}},
		{"empty tables", "pnetids: []\nueids: []\n", Config{PNETs: []nl.PNET{}, UEIDs: []string{}}},
		{"one section", "handshake_limitation: false", Config{HSLimitation: on(false)}},
		{"padded enterprise ID", "ueids: ['A.B   ']", Config{UEIDs: []string{"A.B"}}},
		{"an alias", "pnetids:\n  - &a {pnetid: A, netdev: eth0}\nueids: &b [X]\n", Config{PNETs: []nl.PNET{{ID: "A", NetDev: "eth0"}}, UEIDs: []string{"X"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := Parse([]byte(test.in))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestParseErrors checks that each error is reported with its line.
func TestParseErrors(t *testing.T) {
	for _, test := range []struct {
		name, in string
		want     []string
	}{
		{"unknown key", "pnets: []", []string{`line 1: unknown key "pnets": did you mean "pnetids"?`}},
		{"unknown key of an entry", "pnetids:\n  - pnetid: A\n    netdev: eth0\n    port: 1", []string{`line 4: unknown key "port"`}},
		{"not a list", "pnetids: {pnetid: A}", []string{"line 1: pnetids must be a list, for example [{pnetid: NET1, netdev: eth0}]"}},
		{"not a map", "- pnetids", []string{`line 1: the file must consist of keys and values, for example "ueids: [MY-EID]"`}},
		{"not a boolean", "\nseid: perhaps", []string{"line 2: seid must be true or false"}},
		{"port out of range", "pnetids: [{pnetid: A, ibdev: x, ibport: 300}]", []string{"line 1: ibport must be a port number, 1 or 2"}},
		{"text for a list", "ueids: MY-EID", []string{"line 1: ueids must be a list, for example [MY-EID]"}},
		{"wrong kinds", "pnetids: [A, {pnetid: [B], netdev: {}, ibdev: [], ibport: one}]\nueids:\n  - {A: B}\nhandshake_limitation: 2\nextra: 1\n", []string{
			"line 1: each entry of pnetids must consist of keys and values, for example {pnetid: NET1, netdev: eth0}",
			"line 1: pnetid must be a word, for example NET1",
			"line 1: netdev must be a word, for example eth0",
			"line 1: ibdev must be a word, for example mlx5_0",
			"line 1: ibport must be a port number, 1 or 2",
			"line 3: each entry of ueids must be a word, for example MY-EID",
			"line 4: handshake_limitation must be true or false",
			`line 5: unknown key "extra"`,
		}},
		{"an alias of a wrong kind", "seid: &a true\nueids: *a\n", []string{"line 2: ueids must be a list, for example [MY-EID]"}},
		{"broken", "pnetids: [", []string{"line 1: did not find expected node content"}},
		{"the same key twice", "seid: true\nseid: false", []string{"line 2: mapping key \"seid\" already defined at line 1"}},
		{"two documents", "seid: true\n---\nseid: false\n", []string{"more than one document in the file"}},
		{"no value", "pnetids:\nueids:\n", []string{
			"line 1: pnetids has no value: remove the key, or write [] for an empty list",
			"line 2: ueids has no value: remove the key, or write [] for an empty list",
		}},
		{"every entry", `pnetids:
  - netdev: eth0
  - pnetid: A
  - pnetid: A-B
    netdev: eth1
  - {pnetid: A, netdev: eth2, ibport: 1}
  - {pnetid: A, ibdev: x, ibport: 3}
  - {pnetid: A, netdev: eth3}
  - {pnetid: B, netdev: eth3}
  - {pnetid: A, netdev: eth3}
  - {pnetid: A, netdev: abcdefghijklmnop}
ueids: [a, X, X, Y, Z, W]
`, []string{
			"line 2: the entry has no pnetid",
			"line 3: pnetid A: name a netdev or an ibdev",
			"line 4: pnetid A-B: a pnetid has only letters and digits, not '-'",
			"line 6: pnetid A: ibport needs an ibdev",
			"line 7: pnetid A: invalid port 3: a RoCE port is 1 or 2",
			"line 9: pnetid B: the device already has an entry above",
			"line 10: pnetid A: the device already has an entry above",
			"line 11: pnetid A: the name of a network device has at most 15 characters",
			`line 12: enterprise ID "a": unsupported character 'a': use A-Z, 0-9, '.' and '-'`,
			`line 12: enterprise ID "X" is already listed above`,
			"line 12: 6 enterprise IDs: a stack holds at most 4",
		}},
		{"no enterprise ID at all", "seid: false\nueids: []", []string{"line 1: the system enterprise ID can be disabled only if there is a user-defined one"}},
		{"too long", strings.Repeat("#", MaxSize+1), []string{"the file is larger than 1024 KiB"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, err := Parse([]byte(test.in))
			var errs Errors
			if c != nil || !errors.As(err, &errs) || !errors.Is(err, ErrInvalid) || !errors.Is(err, os.ErrInvalid) {
				t.Fatalf("%v, %v", c, err)
			}
			var got []string
			for _, e := range errs {
				got = append(got, e.Where())
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if want := "config: " + strings.Join(got, "\nconfig: "); err.Error() != want {
				t.Errorf("error %q, want %q", err, want)
			}
		})
	}
}

func TestLoad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "smcr.yaml")
	if _, err := Load(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(path, []byte(example), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := Load(path); err != nil || len(c.PNETs) != 4 {
		t.Errorf("%v, %v", c, err)
	}
	if _, err := Load(filepath.Dir(path)); err == nil {
		t.Error("a directory was read")
	}
}

// anyConfig generates what Parse can return.
func anyConfig(t *rapid.T) *Config {
	c := &Config{}
	if rapid.Bool().Draw(t, "pnetids") {
		c.PNETs = []nl.PNET{}
		for _, dev := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"eth0", "eth1", "no", "1e3", "i:soft-eth0", "i:mlx5_0", "i:null"}), 0, 5, rapid.ID[string]).Draw(t, "devices") {
			n := nl.PNET{ID: rapid.StringMatching(`[A-Z0-9]{1,16}|NO|1E3|0X1F|NULL`).Draw(t, "id"), NetDev: dev}
			if ib, ok := strings.CutPrefix(dev, "i:"); ok {
				n.NetDev, n.IBDev, n.IBPort = "", ib, rapid.Uint8Range(1, 2).Draw(t, "port")
			}
			c.PNETs = append(c.PNETs, n)
		}
	}
	if rapid.Bool().Draw(t, "ueids") {
		c.UEIDs = append([]string{}, rapid.SliceOfNDistinct(rapid.StringMatching(`[A-Z0-9][A-Z0-9-]{0,30}`), 0, nl.MaxUEIDs, rapid.ID[string]).Draw(t, "eids")...)
	}
	draw := func(name string) *bool {
		if !rapid.Bool().Draw(t, name) {
			return nil
		}
		return on(rapid.Bool().Draw(t, name+" value"))
	}
	if rapid.Bool().Draw(t, "programs") {
		c.Programs = append([]Program{}, rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) Program {
			x := Program{Cgroup: "/" + rapid.SampledFrom([]string{"", "a", "system.slice/nginx.service", "no: x", "ü\"\n\u202e", "\xff"}).Draw(t, "cgroup")}
			x.Connect, x.Always = rapid.Bool().Draw(t, "connect"), rapid.Bool().Draw(t, "always")
			x.Accept = !x.Connect || rapid.Bool().Draw(t, "accept")
			return x
		}), 0, 5, func(x Program) string { return x.Cgroup }).Draw(t, "cgroups")...)
	}
	c.SEID, c.HSLimitation = draw("seid"), draw("limitation")
	if c.SEID != nil && c.UEIDs != nil && len(c.UEIDs) == 0 {
		c.SEID = on(true)
	}
	return c
}

// TestRoundTrip checks that Parse returns the configuration that was written.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyConfig(t)
		b, err := c.AppendYAML(nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse(b)
		if err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
		if diff := cmp.Diff(c, got); diff != "" {
			t.Fatalf("-want +got:\n%s\n%s", diff, b)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte("pnetids: []\n"))
	f.Add([]byte("- &a [*a]"))
	f.Add([]byte("programs: [{cgroup: /a, connect: false}, {cgroup: \"/\\xff\", accept: false, adapt: false}]"))
	f.Add([]byte("pnetids: &x [{pnetid: A, netdev: e}]\nueids: *x"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Parse(b)
		if err != nil {
			if !errors.Is(err, ErrInvalid) || c != nil {
				t.Fatalf("%v, %v", c, err)
			}
			return
		}
		out, err := c.AppendYAML(nil)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(out)
		if err != nil {
			t.Fatalf("%v in what was written:\n%s", err, out)
		}
		if diff := cmp.Diff(c, again); diff != "" {
			t.Fatalf("-want +got:\n%s", diff)
		}
	})
}
