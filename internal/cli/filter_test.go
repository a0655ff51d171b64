// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"smcr/nl"
	"smcr/nl/nltest"

	"github.com/google/go-cmp/cmp"
)

// TestFilters checks which rows of the sample state each filter keeps, by a column of the
// JSON form, and that the table has as many lines.
func TestFilters(t *testing.T) {
	w, fake := newWorld(t)
	for _, p := range []nl.PNET{{ID: "NET1", NetDev: "eth0"}, {ID: "NET2", IBDev: "mlx5_0", IBPort: 2}} {
		if err := fake.AddPNET(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		line, column string
		want         []string
	}{
		{"linkgroup list --role server", "id", []string{"00000100"}},
		{"linkgroup list --role client,server", "id", []string{"00000100", "00000200"}},
		{"linkgroup list --type single", "id", []string{"00000200"}},
		{"linkgroup list --pnetid net1", "id", []string{"00000100"}},
		{"linkgroup list --peer 10.77.0.0/24", "id", []string{"00000100"}},
		{"linkgroup list --peer host-b", "id", []string{"00000100"}},
		{"linkgroup list --peer 1234020000000002", "id", []string{"00000100"}},
		{"linkgroup list --netdev eth1", "id", []string{"00000100"}},
		{"linkgroup list --netdev eth0", "id", []string{"00000100", "00000200"}},
		{"linkgroup list --ibdev mlx5_0 --role client", "id", nil},
		{"link list --linkgroup 100", "uid", []string{"00000101", "00000102"}},
		{"link list --state activating", "uid", []string{"00000102"}},
		{"link list --role clnt", "uid", []string{"00000301"}},
		{"link list --netdev eth0", "uid", []string{"00000101", "00000301"}},
		{"link list --ibdev srx_eth0 --state active", "uid", []string{"00000101", "00000301"}},
		{"link list --peer ::ffff:10.77.0.4", "uid", []string{"00000102"}},
		{"device list --ibdev srx_eth0", "ibdev", []string{"srx_eth0"}},
		{"device list --netdev eth0", "ibdev", []string{"srx_eth0"}},
		{"device list --state inactive", "ibdev", []string{"mlx5_0"}},
		{"device list --pnetid net1 --state active", "ibdev", []string{"srx_eth0", "mlx5_0"}},
		{"connection list --mode tcp", "inode", []string{"1003"}},
		{"connection list --state listen", "inode", []string{"1001"}},
		{"connection list --state active --role server", "inode", []string{"1002"}},
		{"connection list --peer 10.77.0.2:40000", "inode", []string{"1002"}},
		{"connection list --peer fd00:77::/64", "inode", []string{"1003"}},
		{"connection list --ibdev srx_eth0", "inode", []string{"1002"}},
		{"connection list --linkgroup 00000100", "inode", []string{"1002"}},
		{"pnet list --netdev eth0", "pnetid", []string{"NET1"}},
		{"pnet list --ibdev mlx5_0,x", "pnetid", []string{"NET2"}},
		{"pnet list --pnetid net1,NET2", "pnetid", []string{"NET1", "NET2"}},
	} {
		t.Run(test.line, func(t *testing.T) {
			w := &world{t: t, stacks: w.stacks}
			status, out, errOut := w.run(append(strings.Fields(test.line), "-o", "json")...)
			if status != 0 || errOut != "" {
				t.Fatalf("exit status %d, %s", status, errOut)
			}
			var rows []map[string]any
			if err := json.Unmarshal([]byte(out), &rows); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, r := range rows {
				got = append(got, fmt.Sprint(r[test.column]))
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			_, table, _ := w.run(strings.Fields(test.line)...)
			if lines := max(0, strings.Count(table, "\n")-1); lines != len(test.want) {
				t.Errorf("the table has %d rows:\n%s", lines, table)
			}
		})
	}
	for _, line := range []string{
		"linkgroup list --role peer", "link list --state up", "link list --linkgroup xyz", "link list --peer host", "device list --netdev=",
	} {
		if status, out, errOut := w.run(strings.Fields(line)...); status != 2 || out != "" || !strings.HasPrefix(errOut, "smcr: invalid argument") {
			t.Errorf("%s: %d, %q, %q", line, status, out, errOut)
		}
	}
}

// TestCompletion asks for completions like a shell.
func TestCompletion(t *testing.T) {
	w, fake := newWorld(t)
	for _, p := range []nl.PNET{{ID: "NET7", NetDev: "eth0"}, {ID: "NET8", IBDev: "mlx5_0", IBPort: 2}} {
		if err := fake.AddPNET(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		line string
		want []string
	}{
		{"pnet del ", []string{"NET7", "NET8"}},
		{"pnet del NET7 ", nil},
		{"pnet add ", []string{"NET7", "NET8"}},
		{"pnet add NET1 -D ", []string{"mlx5_0", "srx_eth0"}},
		{"pnet add NET1 -P ", []string{"1", "2"}},
		{"device list --pnetid ", []string{"NET1", "NET7", "NET8"}},
		{"device list --state ", []string{"ACTIVE", "INACTIVE"}},
		{"link list --ibdev ", []string{"mlx5_0", "srx_eth0"}},
		{"link list --linkgroup ", []string{"00000100", "00000200"}},
		{"linkgroup list --role ", []string{"client", "server"}},
		{"linkgroup list --peer ", []string{"10.77.0.2"}},
		{"linkgroup list --watch=", []string{"1s", "2s", "5s"}},
		{"ueid del ", []string{"SMCV2-EXAMPLE-UEID"}},
		{"ueid add ", nil},
		{"seid ", []string{"disable", "enable", "show"}},
	} {
		got := w.complete(test.line)
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", test.line, diff)
		}
	}
	if devs := w.complete("link list --netdev "); slices.Contains(devs, "lo") {
		t.Errorf("network devices %q: no RoCE over lo", devs)
	}
	// Completion prints no errors.
	none := &world{t: t, dialErr: nl.ErrNoBackend}
	if got := none.complete("ueid del "); got != nil {
		t.Errorf("without a stack: %q", got)
	}
}

// complete returns the completions of the last word of a line, without their
// descriptions.
func (w *world) complete(line string) []string {
	w.t.Helper()
	words := strings.Split(line, " ")
	status, out, _ := w.run(append([]string{"__complete"}, words...)...)
	if status != 0 {
		w.t.Errorf("%q: exit status %d", line, status)
	}
	var names []string
	for l := range strings.Lines(out) {
		if name, _, _ := strings.Cut(strings.TrimSuffix(l, "\n"), "\t"); !strings.HasPrefix(name, ":") {
			names = append(names, name)
		}
	}
	return names
}

// TestSingleValues shows and changes settings that have one value for each stack.
func TestSingleValues(t *testing.T) {
	w, fake := newWorld(t)
	for _, test := range []struct {
		line   string
		status int
		out    string
		err    string
	}{
		{"hslimit show", 0, "Limitation  Stack\noff         user\n", ""},
		{"hslimit enable", 0, "", ""},
		{"hslimit show -o json", 0, "[\n  {\n    \"stack\": \"user\",\n    \"enabled\": true\n  }\n]\n", ""},
		{"hslimit disable", 0, "", ""},
		{"hslimit list", 0, "Limitation  Stack\noff         user\n", ""},
		{"seid show", 0, "SEID  Proposed  Stack\n-     -         user\n", ""},
		{"seid enable", 3, "", "smcr: this host has no system enterprise ID (IBM Z only): use 'smcr ueid add'\n"},
		{"seid disable now", 2, "", "smcr seid disable: unexpected argument \"now\"\n"},
	} {
		status, out, errOut := w.run(strings.Fields(test.line)...)
		if status != test.status || out != test.out || errOut != test.err {
			t.Errorf("%s: %d, %q, %q", test.line, status, out, errOut)
		}
	}
	if on, err := fake.HSLimitation(t.Context()); err != nil || on {
		t.Errorf("limitation %t, %v", on, err)
	}
}

// TestExportApply moves a configuration from one stack to another.
func TestExportApply(t *testing.T) {
	w, fake := newWorld(t)
	if err := fake.AddPNET(t.Context(), nl.PNET{ID: "NET1", NetDev: "eth0", IBDev: "mlx5_0"}); err != nil {
		t.Fatal(err)
	}
	const want = `pnetids:
  - pnetid: NET1
    netdev: eth0
  - pnetid: NET1
    ibdev: mlx5_0
    ibport: 1
ueids:
  - SMCV2-EXAMPLE-UEID
handshake_limitation: false
`
	status, exported, errOut := w.run("export")
	if status != 0 || exported != want || errOut != "" {
		t.Fatalf("%d, %q, %q", status, exported, errOut)
	}
	empty := nltest.NewFake(nltest.SampleState())
	empty.SetNetDevs("eth0", "eth1")
	other := &world{t: t, stacks: nl.Multi{stack(t, "other", empty)}}
	for i, want := range []string{
		"+ pnetid NET1 netdev eth0\n+ pnetid NET1 ibdev mlx5_0 ibport 1\n",
		"+ pnetid NET1 netdev eth0\n+ pnetid NET1 ibdev mlx5_0 ibport 1\n",
		"nothing to change\n",
	} {
		args := []string{"apply", "-"}
		if i == 0 {
			args = append(args, "--dry-run")
		}
		status, out, errOut := other.runInput(exported, args...)
		if status != 0 || out != want || errOut != "" {
			t.Errorf("%q: %d, %q, %q", args, status, out, errOut)
		}
	}
	status, out, _ := other.runInput("ueids: [A.B]", "apply", "-o", "json", "-")
	const changes = `[
  {
    "action": "remove",
    "object": "ueid",
    "value": "SMCV2-EXAMPLE-UEID"
  },
  {
    "action": "add",
    "object": "ueid",
    "value": "A.B"
  }
]
`
	if status != 0 || out != changes {
		t.Errorf("%d, %s", status, out)
	}
	for _, test := range []struct {
		in, args string
		status   int
		err      string
	}{
		{"pnetids: [{pnetid: A, netdev: eth1}, {pnetid: A, netdev: foo}]", "apply -", 3, "smcr: standard input: line 1: cannot give pnetid A to foo: no network device foo; nothing was changed\n"},
		{"seid: true", "apply -", 1, "smcr: standard input: line 1: cannot set seid to true: this stack does not support it; nothing was changed\n"},
		{"bogus: 1\n", "apply -", 1, "smcr: standard input: line 1: unknown key \"bogus\"\n"},
		{"", "apply /no/such/file", 3, "smcr: /no/such/file: no such file or directory\n"},
		{"", "apply", 2, "smcr apply: FILE is required\n"},
		{"", "apply a b", 2, "smcr apply: expected one FILE, unexpected argument \"b\"\n"},
	} {
		status, out, errOut := other.runInput(test.in, strings.Fields(test.args)...)
		if status != test.status || out != "" || errOut != test.err {
			t.Errorf("%s: %d, %q, %q, want %d, %q", test.args, status, out, errOut, test.status, test.err)
		}
	}
	if _, again, _ := other.run("export"); !strings.Contains(again, "A.B") || strings.Contains(again, "netdev: eth1") {
		t.Errorf("errors changed the stack:\n%s", again)
	}
}
