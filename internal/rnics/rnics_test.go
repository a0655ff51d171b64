// SPDX-License-Identifier: Apache-2.0

package rnics

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/iostreams"
	"smcr/nl"
	"smcr/nl/nltest"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "write what the command prints to testdata")

// sysfs makes the fixture's file system.
func sysfs(t *testing.T) FS {
	t.Helper()
	root := t.TempDir()
	a, err := txtar.ParseFile("testdata/sys.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range a.Files {
		name := filepath.Join(root, f.Name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if target, ok := bytes.CutPrefix(f.Data, []byte("-> ")); ok {
			err = os.Symlink(strings.TrimSpace(string(target)), name)
		} else {
			err = os.WriteFile(name, f.Data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// NET4 and blanks for port 1, nothing for the other.
	util := append([]byte{0xd5, 0xc5, 0xe3, 0xf4}, bytes.Repeat([]byte{0x40}, 12)...)
	util = append(util, make([]byte, 48)...)
	if err := os.WriteFile(filepath.Join(root, "devices/pci0001:00/0001:00:00.0/util_string"), util, 0o644); err != nil {
		t.Fatal(err)
	}
	return NewFS(root)
}

// list runs the command on the fixture, with a stack that gave pnetids.
func list(t *testing.T, fs FS, stack bool, line string) (string, error) {
	t.Helper()
	streams, _, out, _ := iostreams.Test()
	f := &cmdutil.Factory{IO: streams, Backend: "auto", Dial: func(context.Context, string) (nl.Multi, error) {
		if !stack {
			return nil, nl.ErrNoBackend
		}
		fake := nltest.NewFake(nltest.State{})
		for _, p := range []nl.PNET{{ID: "NET5", IBDev: "mlx5_0", IBPort: 1}, {ID: "NET9", IBDev: "mlx4_0", IBPort: 1}, {ID: "NET1", NetDev: "eth9"}} {
			if err := fake.AddPNET(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
		return nl.Multi{{Name: "kernel", Control: fake}}, nil
	}}
	cmd := newCmd(f, fs, nil)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(strings.Fields(line))
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestGolden(t *testing.T) {
	fs := sysfs(t)
	for name, line := range map[string]string{"table": "", "wide": "-o wide", "json": "-o json"} {
		got, err := list(t, fs, true, line)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", name+".golden")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestFilters(t *testing.T) {
	fs := sysfs(t)
	for line, want := range map[string][]string{
		"":                             {"ib0", "mlx4_0", "mlx4_0", "mlx5_0", "rxe0"},
		"--ibdev mlx4_0":               {"mlx4_0", "mlx4_0"},
		"--state active":               {"mlx4_0", "mlx5_0", "rxe0"},
		"--netdev ens1,eth9":           {"mlx5_0", "rxe0"},
		"--pnetid net4":                {"mlx4_0"},
		"--pnetid net5 --state active": {"mlx5_0"},
		"--pnetid net9":                nil, // the hardware has another one
	} {
		out, err := list(t, fs, true, line+" -o json")
		if err != nil {
			t.Fatal(err)
		}
		var rows []portJSON
		if err := json.Unmarshal([]byte(out), &rows); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range rows {
			got = append(got, r.IBDev)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

// TestWithout checks hosts without stack and without RDMA.
func TestWithout(t *testing.T) {
	if out, err := list(t, sysfs(t), false, "--ibdev mlx5_0"); err != nil || !strings.Contains(out, "ens1") || strings.Contains(out, "NET5") {
		t.Errorf("no stack: %q, %v", out, err)
	}
	if out, err := list(t, NewFS(t.TempDir()), false, ""); err != nil || out != "" {
		t.Errorf("no RDMA: %q, %v", out, err)
	}
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "class/infiniband"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(root, "class/infiniband/gone")); err != nil {
		t.Fatal(err)
	}
	if devices, err := NewFS(root).Devices(); err != nil || len(devices) != 0 {
		t.Errorf("device that is gone: %v, %v", devices, err)
	}
}

func TestHardwareID(t *testing.T) {
	blanks := func(s ...byte) []byte { return append(s, bytes.Repeat([]byte{0x40}, 16-len(s))...) }
	for _, test := range []struct {
		util []byte
		port int
		want string
	}{
		{nil, 1, ""},
		{make([]byte, 64), 1, ""},
		{blanks(0xc1, 0xc9, 0xd1, 0xd9, 0xe2, 0xe9, 0xf0, 0xf9), 1, "AIJRSZ09"},
		{append(blanks(0xc1), blanks(0xc2)...), 2, "B"},
		{blanks(0xc1)[:15], 1, ""},
		{[]byte("0123456789ABCDEF"), 1, ""}, // not EBCDIC
	} {
		if got := hardwareID(test.util, test.port); got != test.want {
			t.Errorf("% x, port %d: %q, want %q", test.util, test.port, got, test.want)
		}
	}
}
