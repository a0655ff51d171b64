// SPDX-License-Identifier: Apache-2.0

package smcrnics

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"smcr/internal/cmdutil"
	"smcr/internal/smctools/tool"
	"smcr/nl"
	"smcr/nl/nltest"

	"github.com/google/go-cmp/cmp"
)

// machine makes the sysfs of an IBM Z machine.
func machine(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	// Code page 1047: "NET1" is the pnetid of the first port, "NET2" that of the second.
	net1 := "\xd5\xc5\xe3\xf1" + strings.Repeat("\x40", 12)
	net2 := "\xd5\xc5\xe3\xf2" + strings.Repeat("\x00", 12)
	files := map[string]string{
		"slots/00000011/power": "1", "slots/00000012/power": "1", "slots/00000013/power": "1", "slots/00000014/power": "1",
		"slots/00000015/power": "0", "slots/00000016/power": "1", "slots/00000017/power": "1", "slots/notours/address": "x",
	}
	device := func(addr, fid, vendor, device, pft, vfn, pchid, util string, more map[string]string) {
		for name, text := range map[string]string{
			"function_id": "0x" + fid, "vendor": vendor, "device": device, "pft": pft, "vfn": vfn, "pchid": pchid, "util_string": util,
		} {
			files["devices/"+addr+"/"+name] = text
		}
		for name, text := range more {
			files["devices/"+addr+"/"+name] = text
		}
	}
	device("0011:00:00.0", "00000011", "0x15b3", "0x1004", "0x02", "0x0001", "0x01c0", net1+net2, map[string]string{
		"net/eth1/dev_port": "0", "net/eth2/dev_port": "1", "infiniband/mlx4_0/ports/1/state": "4: ACTIVE", "infiniband/mlx4_0/ports/2/state": "4: ACTIVE",
	})
	device("0012:00:00.0", "00000012", "0x15b3", "0x1016", "0x0a", "0x0002", "0x01c4", "", map[string]string{
		"port": "1", "net/eth3/dev_port": "0", "infiniband/mlx5_0/ports/1/state": "4: ACTIVE",
	})
	device("0013:00:00.0", "00000013", "0x1014", "0x04ed", "0x05", "0x0000", "0x07c0", net1, nil)
	device("0014:00:00.0", "00000014", "0x15b3", "0x101e", "0x0f", "0x0000", "0x01d0", "", map[string]string{"port": "2", "net/eth4/dev_port": "0"})
	device("0016:00:00.0", "00000016", "0x1234", "0x5678", "0x77", "0x000a", "0x0001", "", nil)
	for name, text := range files {
		path := filepath.Join(root, "bus/pci", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(name, "util_string") {
			text += "\n"
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func try(t *testing.T, arch, root string, line string) (out, errOut string, status int) {
	t.Helper()
	fake := nltest.NewFake(nltest.State{})
	fake.SetNetDevs("eth3")
	for _, p := range []nl.PNET{{ID: "SOFT3", NetDev: "eth3"}, {ID: "OTHER", NetDev: "eth9"}} {
		if err := fake.AddPNET(t.Context(), p); err != nil && p.NetDev == "eth3" {
			t.Fatal(err)
		}
	}
	streams, _, o, e := cmdutil.MemoryStreams()
	env := tool.NewEnv(&cmdutil.Factory{IO: streams, Backend: "kernel", Dial: func(context.Context, string) (nl.Multi, error) {
		return nl.Multi{{Name: "kernel", Control: fake}}, nil
	}}, "smc_rnics")
	fs := NewFS(root, func(netdev string) string { return map[string]string{"eth3": "14.32.1010"}[netdev] })
	status = run(t.Context(), env, strings.Fields(line), arch, fs)
	return o.String(), e.String(), status
}

func TestList(t *testing.T) {
	root := machine(t)
	line := strings.Repeat("-", 100) + "\n"
	head := "FID   Power  PCI_ID        PCHID  Type             PFT   VF   PPrt  PNET_ID            Net-Dev\n" + line
	const missing = "Error: No matching device found for FID 00000017\n"
	for _, test := range []struct{ line, want, wantErr string }{
		{"", head +
			"  11  1      0011:00:00.0  01c0   RoCE_Express     ROC   y    0     NET1               eth1\n" +
			"  11  1      0011:00:00.0  01c0   RoCE_Express     ROC   y    1     NET2               eth2\n" +
			"  12  1      0012:00:00.0  01c4   RoCE_Express2    ROC2  y    0     SOFT3*             eth3\n" +
			"  13  1      0013:00:00.0  07c0   ISM              ISM   y    n/a   NET1               n/a\n" +
			"  14  1      0014:00:00.0  01d0   Network_Express  NETD  n    1     n/a                eth4\n", missing},
		{"--all 15", head + "  15  0" + strings.Repeat(" ", 80) + "\n", ""},
		{"-a 0x16", head + "  16  1      0016:00:00.0  0001   1234:5678        0x77  y    n/a   n/a                n/a\n", ""},
		{"-I 11", strings.Replace(strings.Replace(head, "PPrt", "IPrt", 1), "Net-Dev", "IB-Dev", 1) +
			"  11  1      0011:00:00.0  01c0   RoCE_Express     ROC   y    1     NET1               mlx4_0\n" +
			"  11  1      0011:00:00.0  01c0   RoCE_Express     ROC   y    2     NET2               mlx4_0\n", ""},
		{"-r 16", strings.Replace(head, "VF ", "VFN", 1) + "  16  1      0016:00:00.0  0001   1234:5678        0x77  10   n/a   n/a                n/a\n", ""},
	} {
		out, errOut, status := try(t, "s390x", root, test.line)
		if diff := cmp.Diff(test.want, out); diff != "" || errOut != test.wantErr || status != 0 {
			t.Errorf("%q: %d, %q (-want +got):\n%s", test.line, status, errOut, diff)
		}
	}
}

func TestStatus(t *testing.T) {
	root := machine(t)
	for _, test := range []struct {
		arch, line string
		status     int
		text       string
	}{
		{"amd64", "", 1, "Error: s390/s390x supported only\n"},
		{"amd64", "zz", 3, "Error: 'zz' is not a valid FID\n"},
		{"s390x", "-z", 2, "getopt: invalid option -- 'z'\n"},
		{"s390x", "-e", 2, "getopt: option requires an argument -- 'e'\n"},
		{"s390x", "-e 11 12", 4, ""},
		{"s390x", "-e 99", 5, "Error: FID 99 does not exist\n"},
		{"s390x", "-e 0x11", 6, "Error: FID 11 is already enabled\n"},
		{"s390x", "-d 15", 6, "Error: FID 15 is already disabled\n"},
		{"s390x", "-e 15", 0, ""},
		{"s390x", "--disable=15", 0, ""},
		{"s390x", "-d x", 3, "Error: 'x' is not a valid FID\n"},
		{"s390x", "99", 8, ""},
	} {
		_, errOut, status := try(t, test.arch, root, test.line)
		if status != test.status || errOut != test.text {
			t.Errorf("%q: %d, %q; want %d, %q", test.line, status, errOut, test.status, test.text)
		}
	}
	// A file that cannot be written is an error.
	power := filepath.Join(root, "bus/pci/slots/00000015/power")
	if err := os.Remove(power); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", power); err != nil {
		t.Fatal(err)
	}
	if on, err := NewFS(root, nil).Power("00000011"); !on || err != nil {
		t.Errorf("%v, %v", on, err)
	}
	if err := NewFS(root, nil).SetPower("00000015", true); err == nil {
		t.Error("a write that failed is no error")
	}
}
