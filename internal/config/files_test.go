// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"smcr/nl"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// A tree is a configuration file with its drop-in files.
type tree struct {
	t    *testing.T
	main string
}

func newTree(t *testing.T) tree {
	t.Helper()
	tr := tree{t, filepath.Join(t.TempDir(), "smcr.yaml")}
	if err := os.Mkdir(DropIns(tr.main), 0o755); err != nil {
		t.Fatal(err)
	}
	return tr
}

// write writes a drop-in file, or the configuration file if name is "".
func (tr tree) write(name, text string) {
	tr.t.Helper()
	file := tr.main
	if name != "" {
		file = filepath.Join(DropIns(tr.main), name)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		tr.t.Fatal(err)
	}
}

// names returns what Files reads, relative to the directory.
func (tr tree) names() string {
	tr.t.Helper()
	files, err := Files(tr.main)
	if err != nil {
		tr.t.Fatal(err)
	}
	var all []string
	for _, p := range Paths(files) {
		rel, err := filepath.Rel(filepath.Dir(tr.main), p)
		if err != nil {
			tr.t.Fatal(err)
		}
		all = append(all, rel)
	}
	return strings.Join(all, " ")
}

func TestFiles(t *testing.T) {
	tr := newTree(t)
	if _, err := Files(tr.main); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	for _, name := range []string{"9.yaml", "10.yaml", "B.yaml", "a.yaml", ".hidden.yaml", "x.yml", "50.yaml.dpkg-dist", "60.yaml~", "README"} {
		tr.write(name, "")
	}
	const dropIns = "smcr.yaml.d/10.yaml smcr.yaml.d/9.yaml smcr.yaml.d/B.yaml smcr.yaml.d/a.yaml"
	if got := tr.names(); got != dropIns {
		t.Errorf("only drop-in files: %s", got)
	}
	tr.write("", "")
	if got := tr.names(); got != "smcr.yaml "+dropIns {
		t.Errorf("all files: %s", got)
	}
	dir := DropIns(tr.main)
	if err := os.Symlink("/dev/null", filepath.Join(dir, "null.yaml")); err != nil {
		t.Fatal(err)
	}
	if c, err := Load(tr.main); err != nil || !c.Empty() {
		t.Errorf("%+v, %v", c, err)
	}
	// What cannot be read is an error that names it, and no file that is left out.
	for name, make := range map[string]func(string) error{
		"directory.yaml": func(p string) error { return os.Mkdir(p, 0o755) },
		"fifo.yaml":      func(p string) error { return syscall.Mkfifo(p, 0o644) },
		"nowhere.yaml":   func(p string) error { return os.Symlink("nosuch", p) },
	} {
		p := filepath.Join(dir, name)
		if err := make(p); err != nil {
			t.Fatal(err)
		}
		if c, err := Load(tr.main); err == nil || !strings.Contains(err.Error(), p) {
			t.Errorf("%s: %v, %v", name, c, err)
		}
		if err := os.Remove(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Files(tr.main); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("a file in place of the directory: %v", err)
	}
}

func TestMerge(t *testing.T) {
	for _, test := range []struct {
		name  string
		texts []string
		want  string // the file that says the same
	}{
		{name: "nothing", texts: []string{"", "# x\n"}, want: ""},
		{name: "flags", texts: []string{"seid: true\nhandshake_limitation: true\n", "handshake_limitation: false\n", "ueids: [A]\n"}, want: "seid: true\nhandshake_limitation: false\nueids: [A]\n"},
		{name: "lists", texts: []string{"ueids: [A, B]\npnetids: [{pnetid: N, netdev: eth0}]\n", "ueids: [C, A]\npnetids: [{pnetid: N, netdev: eth1}]\n"}, want: "ueids: [A, B, C]\npnetids: [{pnetid: N, netdev: eth0}, {pnetid: N, netdev: eth1}]\n"},
		{name: "the same device", texts: []string{"pnetids: [{pnetid: A, netdev: eth0}, {pnetid: A, ibdev: x}, {pnetid: A, ibdev: y}]\n", "pnetids: [{pnetid: B, netdev: eth0}, {pnetid: B, ibdev: x, ibport: 2}]\n"}, want: "pnetids: [{pnetid: B, netdev: eth0}, {pnetid: B, ibdev: x, ibport: 2}, {pnetid: A, ibdev: y}]\n"},
		{name: "the same cgroup", texts: []string{"programs: [{cgroup: /a, accept: false}, {cgroup: /b}]\n", "programs: [{cgroup: /a}]\n", "programs: [{cgroup: /b, adapt: false}]\n"}, want: "programs: [{cgroup: /a}, {cgroup: /b, adapt: false}]\n"},
		{name: "an empty list and another one", texts: []string{"programs: []\n", "programs: [{cgroup: /a}]\n"}, want: "programs: [{cgroup: /a}]\n"},
		{name: "another one and an empty list", texts: []string{"ueids: [A]\n", "ueids: []\n"}, want: "ueids: [A]\n"},
		{name: "empty lists", texts: []string{"ueids: []\n", "ueids: []\n"}, want: "ueids: []\n"},
		{name: "no enterprise ID in one of them", texts: []string{"seid: false\nueids: []\n", "ueids: [A]\n"}, want: "seid: false\nueids: [A]\n"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var files []File
			for i, text := range test.texts {
				files = append(files, File{fmt.Sprint(i), []byte(text)})
			}
			got, err := Merge(files)
			if err != nil {
				t.Fatal(err)
			}
			want, err := Parse([]byte(test.want))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestMergeErrors(t *testing.T) {
	for _, test := range []struct {
		name  string
		texts []string
		want  string
	}{
		{"in each file", []string{"ueids: 7\n", "\nseid: perhaps\n", "nothing: 1\n"}, "config: 0: line 1: ueids must be a list, for example [MY-EID]\nconfig: 1: line 2: seid must be true or false\nconfig: 2: line 1: unknown key \"nothing\""},
		{"too many enterprise IDs", []string{"ueids: [A, B]\n", "seid: true\nueids: [B, C]\n", "\n\nueids: [D, E]\n", "ueids: [F]\n"}, "config: 2: line 3: 5 enterprise IDs: a stack holds at most 4"},
		{"too many programs", []string{many(0, MaxPrograms), many(MaxPrograms-1, MaxPrograms), many(MaxPrograms, MaxPrograms+1)}, "config: 2: line 2: 2049 entries of programs: a stack holds at most 2048"},
		{"no enterprise ID at all", []string{"ueids: []\n", "\nseid: false\n", "handshake_limitation: true\n"}, "config: 1: line 2: the system enterprise ID can be disabled only if there is a user-defined one"},
		{"the same twice in one file", []string{"ueids: [A]\n", "ueids: [A, A]\n"}, "config: 1: line 1: enterprise ID \"A\" is already listed above"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var files []File
			for i, text := range test.texts {
				files = append(files, File{fmt.Sprint(i), []byte(text)})
			}
			c, err := Merge(files)
			if c != nil || !errors.Is(err, ErrInvalid) || err.Error() != test.want {
				t.Errorf("%v\n%v\nwant\n%s", c, err, test.want)
			}
		})
	}
	tr := newTree(t)
	tr.write("", strings.Repeat("#", MaxSize/2))
	tr.write("1.yaml", strings.Repeat("#", MaxSize/2))
	if _, err := Load(tr.main); err != nil {
		t.Error(err)
	}
	tr.write("2.yaml", "#")
	if _, err := Load(tr.main); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "2.yaml: with it,") {
		t.Errorf("too large together: %v", err)
	}
}

// many returns a file with the programs from a number on and before another one.
func many(from, to int) string {
	var b strings.Builder
	b.WriteString("programs:\n")
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "  - cgroup: /%d\n", i)
	}
	return b.String()
}

// TestMergeAnything: one file is what it says, an empty one changes nothing, and the parts of a file say together what the file says.
func TestMergeAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyConfig(t)
		text := func(c *Config) File {
			b, err := c.AppendYAML(nil)
			if err != nil {
				t.Fatal(err)
			}
			return File{"x", b}
		}
		split := func(n int, name string) int { return rapid.IntRange(0, n).Draw(t, name) }
		first, second := *c, *c
		i := split(len(c.PNETs), "pnetids of the first")
		first.PNETs, second.PNETs = c.PNETs[:i], c.PNETs[i:]
		i = split(len(c.Programs), "programs of the first")
		first.Programs, second.Programs = c.Programs[:i], c.Programs[i:]
		if rapid.Bool().Draw(t, "flags in the first") {
			second.SEID, second.HSLimitation = nil, nil
		}
		for _, files := range [][]File{{text(c)}, {{}, text(c), {}}, {text(&first), text(&second)}, {text(c), text(&second), text(c)}} {
			got, err := Merge(files)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		}
	})
}

// FuzzMerge: what two files say is valid, if it is no error, and each of them is.
func FuzzMerge(f *testing.F) {
	f.Add([]byte("ueids: [A]\nprograms:\n- cgroup: /a\n"), []byte("ueids: []\nprograms: [{cgroup: /a, accept: false}]\n"))
	f.Add([]byte("pnetids: [{pnetid: A, ibdev: x}]"), []byte("pnetids: [{pnetid: B, ibdev: x, ibport: 2}]"))
	f.Add([]byte("seid: false\nueids: []\n"), []byte("ueids: [A]\npnetids: [{pnetid: A, netdev: x}]"))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		c, err := Merge([]File{{"a", a}, {"b", b}})
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Error(err)
			}
			return
		}
		if len(c.UEIDs) > nl.MaxUEIDs || len(c.Programs) > MaxPrograms {
			t.Errorf("%+v", c)
		}
		text, err := c.AppendYAML(nil)
		if err != nil {
			return // names that YAML cannot have
		}
		again, err := Parse(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if diff := cmp.Diff(c, again); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	})
}
