// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"os"
	"strings"
	"testing"

	"smcr/nl"
	"smcr/nl/nltest"

	"github.com/google/go-cmp/cmp"
)

// TestLocate has a stack refuse each kind of entry of a valid configuration of several files. The error names the file and the line of the
// entry that counts, in whatever way that is written. What is in no file has no place.
func TestLocate(t *testing.T) {
	files := []File{
		{"main.yaml", []byte("# the first line\npnetids:\n  - pnetid: A\n    netdev: eth0\n  - {pnetid: B, netdev: eth1, ibdev: mlx5_1}\nueids: [FIRST]\nseid: true\n")},
		{"d/10.yaml", []byte("ueids:\n  - SECOND\n  - 'THIRD   '\nhandshake_limitation: true\nprograms:\n  - cgroup: /a\n  - cgroup: /b\n")},
		{"d/20.yaml", []byte("pnetids: &list\n  - netdev: eth0\n    pnetid: C\n  - {pnetid: D, ibdev: mlx5_0, ibport: 2}\nseid: true\nprograms: [{cgroup: /b, accept: false}]\n")},
		{"d/30.yaml", []byte("# nothing\n")},
	}
	c, err := Merge(files)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"give pnetid C to eth0":            "d/20.yaml: line 2", // it is in main.yaml, too
		"give pnetid B to eth1":            "main.yaml: line 5",
		"give pnetid B to mlx5_1":          "main.yaml: line 5",
		"give pnetid D to mlx5_0":          "d/20.yaml: line 4",
		"define enterprise ID FIRST":       "main.yaml: line 6",
		"define enterprise ID SECOND":      "d/10.yaml: line 2",
		"define enterprise ID THIRD":       "d/10.yaml: line 3",
		"set seid to true":                 "d/20.yaml: line 5",
		"set handshake_limitation to true": "d/10.yaml: line 4",
		"attach cgroup /a":                 "d/10.yaml: line 6",
		"attach cgroup /b":                 "d/20.yaml: line 6",
		"remove pnetid OLD":                "",
		"remove enterprise ID OLD":         "",
		"detach cgroup /old":               "",
	}
	got := map[string]string{}
	for at := 1; ; at++ {
		stack := newStack(t, &Config{
			PNETs: []nl.PNET{{ID: "OLD", NetDev: "eth9"}}, UEIDs: []string{"OLD"}, SEID: on(false), HSLimitation: on(false),
			Programs: []Program{{Cgroup: "/old", Connect: true, Accept: true}},
		})
		stack.failAt = at
		_, err := c.Apply(t.Context(), stack)
		if err == nil {
			break
		}
		before := err.Error()
		var failed *ApplyError
		if !errors.As(err, &failed) {
			t.Fatal(err)
		}
		is := Locate(err, files)
		got[failed.Step] = failed.Where
		if text := "config: " + failed.Where + ": " + failed.Step + ": "; is != (failed.Where != "") || !is && err.Error() != before || is && !strings.HasPrefix(err.Error(), text) {
			t.Errorf("%s: %v", failed.Step, err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if Locate(os.ErrExist, files) || Locate(nil, files) {
		t.Error("an error of something else has a place")
	}
}

// TestUnusedWhere: what a stack cannot use is found in the files, sections too.
func TestUnusedWhere(t *testing.T) {
	files := []File{
		{"main.yaml", []byte("seid: true\nueids: [A]\n")},
		{"d/10.yaml", []byte("pnetids:\n  - {pnetid: A, netdev: eth0}\n  - {pnetid: A, netdev: eth7}\nueids:\n\n  - B\nprograms: [{cgroup: /a}]\n")},
	}
	c, err := Merge(files)
	if err != nil {
		t.Fatal(err)
	}
	fake := nltest.NewFake(nltest.State{SysInfo: nl.SysInfo{Version: 1}})
	_, left, err := c.Usable(t.Context(), struct{ nl.Control }{fake}, func(name string) bool { return name == "eth0" })
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, u := range left {
		word, _, _ := strings.Cut(u.Text, ":")
		got = append(got, word+" at "+u.Where(files))
		if u.Where(nil) != "" {
			t.Errorf("%s is somewhere", u.Text)
		}
	}
	if got, want := strings.Join(got, ", "), "ueids at d/10.yaml: line 6, seid at main.yaml: line 1, programs at d/10.yaml: line 7, pnetid A at d/10.yaml: line 3"; got != want {
		t.Errorf("left out:\n%s, want\n%s", got, want)
	}
}
