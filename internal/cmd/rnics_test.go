// SPDX-License-Identifier: Apache-2.0

package cmd

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
	"smcr/internal/sysfs"
	"smcr/nl"
	"smcr/nl/nltest"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "write what the command prints to testdata")

// testSysfs makes a sysfs for a test.
func testSysfs(t *testing.T) sysfs.FS {
	t.Helper()
	root := t.TempDir()
	a, err := txtar.ParseFile("testdata/rnics/sys.txtar")
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
	// Port 1 has NET4 and blanks, the other port has no pnetid.
	util := append([]byte{0xd5, 0xc5, 0xe3, 0xf4}, bytes.Repeat([]byte{0x40}, 12)...)
	util = append(util, make([]byte, 48)...)
	if err := os.WriteFile(filepath.Join(root, "devices/pci0001:00/0001:00:00.0/util_string"), util, 0o644); err != nil {
		t.Fatal(err)
	}
	return sysfs.New(root)
}

// runRNICs runs the command on testSysfs. The stack, if there is one, has pnetids.
func runRNICs(t *testing.T, fs sysfs.FS, stack bool, line string) (string, error) {
	t.Helper()
	streams, _, out, _ := cmdutil.MemoryStreams()
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
	cmd := newRNICs(f, fs)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(strings.Fields(line))
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestRNICsGolden(t *testing.T) {
	fs := testSysfs(t)
	for name, line := range map[string]string{"table": "", "wide": "-o wide", "json": "-o json"} {
		got, err := runRNICs(t, fs, true, line)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", "rnics", name+".golden")
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

func TestRNICsFilters(t *testing.T) {
	fs := testSysfs(t)
	for line, want := range map[string][]string{
		"":                             {"ib0", "mlx4_0", "mlx4_0", "mlx5_0", "rxe0"},
		"--ibdev mlx4_0":               {"mlx4_0", "mlx4_0"},
		"--state active":               {"mlx4_0", "mlx5_0", "rxe0"},
		"--netdev ens1,eth9":           {"mlx5_0", "rxe0"},
		"--pnetid net4":                {"mlx4_0"},
		"--pnetid net5 --state active": {"mlx5_0"},
		"--pnetid net9":                nil, // the hardware has another pnetid
	} {
		out, err := runRNICs(t, fs, true, line+" -o json")
		if err != nil {
			t.Fatal(err)
		}
		var rows []rnicJSON
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

// TestRNICsWithout checks hosts without a stack and without RDMA devices.
func TestRNICsWithout(t *testing.T) {
	if out, err := runRNICs(t, testSysfs(t), false, "--ibdev mlx5_0"); err != nil || !strings.Contains(out, "ens1") || strings.Contains(out, "NET5") {
		t.Errorf("no stack: %q, %v", out, err)
	}
	if out, err := runRNICs(t, sysfs.New(t.TempDir()), false, ""); err != nil || out != "IB-Dev  IB-P  Net-Dev  State  Link-Layer  Rate  Driver  PNET-ID\n" {
		t.Errorf("no RDMA: %q, %v", out, err)
	}
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "class/infiniband"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(root, "class/infiniband/gone")); err != nil {
		t.Fatal(err)
	}
	if devices, err := sysfs.New(root).Devices(); err != nil || len(devices) != 0 {
		t.Errorf("device that is gone: %v, %v", devices, err)
	}
}
