// SPDX-License-Identifier: Apache-2.0

package smcrd

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"smcr/internal/smctools/tool"
	"smcr/nl"
	"smcr/nl/nltest"
	"smcr/smc"
)

// sample is a state that is not in the recordings: ISM devices, RNICs of IBM Z, link
// groups of version 1, a link that is being set up.
func sample() nltest.State {
	return nltest.State{
		SysInfo: nl.SysInfo{Version: 2, Release: 1, ISMv2: true, SMCRv2: false, LocalHost: "zhost", SEID: "IBM-SYSZ-ISMSEID0000000001234567"},
		SEID:    nl.SEID{Value: "IBM-SYSZ-ISMSEID0000000001234567", Enabled: true},
		LinkGroups: []nl.LinkGroup{
			{ID: 0x100, Role: smc.Server, Type: smc.GroupSymmetric, VLAN: 5, Conns: 12, PNETID: "NET1", Sndbuf: 1 << 33, RMB: 65536},
			{ID: 0x200, Role: smc.Client, Type: smc.GroupAsymmetricLocal, PNETID: "NET2", V2: &nl.V2Common{Version: 2, Release: 1, OS: 7, EID: "A.B", PeerHost: "p"}, V2R: &nl.V2R{}},
		},
		LinkGroupsD: []nl.LinkGroupD{
			{ID: 0x300, VLAN: 0x7b, Conns: 2, PNETID: "NET1", Sndbuf: 1, DMB: 2},
			{ID: 0x301, V2: &nl.V2Common{Version: 2, OS: smc.OSZOS, EID: "A.B", PeerHost: "p"}},
		},
		Links: []nl.Link{
			{LinkGroup: 0x100, Role: smc.Server, Type: smc.GroupSymmetric, ID: 1, IBDev: "mlx5_longname", IBPort: 1, State: smc.LinkActivating, Conns: 3, UID: nl.LinkUID{1, 2, 3, 4}, PeerUID: nl.LinkUID{0xa, 0, 0, 1}},
			{LinkGroup: 0x100, Role: smc.Server, Type: smc.GroupSymmetric, ID: 2, IBDev: "mlx5_1", IBPort: 2, State: 9},
		},
		Devices: []nl.Device{
			{Name: "mlx5_longname", Critical: true, PCI: &nl.PCI{FID: 0x12, CHID: 0x1c0, Device: 0x1016, ID: "0012:00:00.0"}, Ports: []nl.Port{
				{Valid: true, Active: true, PNETID: "ABCDEFGHIJKLMNOP", PNETUser: true, Links: 2},
				{Valid: true, PNETID: "NET2"},
			}},
			{Name: "mlx4_0", PCI: &nl.PCI{Device: 0xbeef}, Ports: []nl.Port{{Valid: false}, {Valid: true}}},
		},
		DevicesD: []nl.Device{{UseCount: 3, Critical: true, PCI: &nl.PCI{FID: 0x29, CHID: 0x7c0, Device: 0x04ed, ID: "0029:00:00.0"}, Ports: []nl.Port{{PNETID: "NET1", Valid: true}}}},
	}
}

func TestSample(t *testing.T) {
	b := newBench(t, sample())
	for line, want := range map[string]string{
		"smcd device": "FID  Type  PCI-ID        PCHID  InUse  #LGs  PNET-ID  \n" +
			"0029 ISM   0029:00:00.0  07c0   Yes       3  NET1             \n",
		"smcr -d device": "Net-Dev         IB-Dev   IB-P  IB-State  Type          Crit   FID   PCI-ID        PCHID  #Links  PNET-ID  \n" +
			"                mlx5_lon    1    ACTIVE  RoCE_Express2  Yes   0012  0012:00:00.0  01c0        2  *ABCDEFGHIJKLMNO \n" +
			"                mlx5_lon    2  INACTIVE  RoCE_Express2  Yes   0012  0012:00:00.0  01c0        0  NET2             \n" +
			"                mlx4_0      2  INACTIVE  0xbeef          No   0000                0000        0                   \n",
		"smcr device ibdev mlx4_0": "Net-Dev         IB-Dev   IB-P  IB-State  Type          Crit  #Links  PNET-ID  \n" +
			"                mlx4_0      2  INACTIVE  0xbeef          No       0                   \n",
		"smcr linkgroup": "LG-ID    LG-Role  LG-Type  VLAN  #Conns  PNET-ID \n" +
			"00000100 SERV     SYM       0x5      12  NET1             \n" +
			"00000200 CLNT     ASYML       0       0  NET2             \n",
		"smcr linkgroup show 0x2ff": "LG-ID    LG-Role  LG-Type  VLAN  #Conns  PNET-ID \n" +
			"00000200 CLNT     ASYML       0       0  NET2             \n",
		"smcr linkgroup 0": "LG-ID    LG-Role  LG-Type  VLAN  #Conns  PNET-ID \n" +
			"00000100 SERV     SYM       0x5      12  NET1             \n" +
			"00000200 CLNT     ASYML       0       0  NET2             \n",
		"smcr -d linkgroup": "LG-ID    : 00000100\nLG-Role  : SERV\nLG-Type  : SYM\nVLAN     : 5\nPNET-ID  : NET1\nVersion  : 1\n" +
			"#Conns   : 12\nSndbuf   : 8589934592 B\nRMB      : 65536 B\n\n" +
			"LG-ID    : 00000200\nLG-Role  : CLNT\nLG-Type  : ASYML\nVLAN     : 0\nPNET-ID  : NET2\nVersion  : 2\nPeer-Rel : 1\nPeer-Host: p\n" +
			"Peer-OS  : Unknown (0x7)\nDirect   : No\nEID      : A.B                             \n#Conns   : 0\nSndbuf   : 0 B\nRMB      : 0 B\n",
		"smcr -ad linkgroup 100": "LG-ID    LG-Role  LG-Type  VLAN  #Conns  PNET-ID \n00000100 SERV     SYM       0x5      12  NET1             \n",
		"smcd linkgroup": "LG-ID    VLAN  #Conns  PNET-ID \n" +
			"00000300 0x7b       2  NET1             \n" +
			"00000301    0       0                   \n",
		"smcd linkgroup 300": "LG-ID    VLAN  #Conns  PNET-ID \n00000300 0x7b       2  NET1             \n",
		"smcd -dd linkgroup 301": "LG-ID    : 00000301\nVLAN     : 0\nPNET-ID  : \nVersion  : 2\nPeer-Rel : 0\nPeer-Host: p\nPeer-OS  : ZOS\n" +
			"EID      : A.B                             \n#Conns   : 0\nSndbuf   : 0 B\nDMB      : 0 B\n",
		"smcr -d linkgroup link-show": "LG-ID    LG-Role  LG-Type  Net-Dev         Link-State      #Conns  Link-UID  Peer-UID  IB-Dev    IB-P  \n" +
			"00000100 SERV     SYM                      LINK_ACTIVATING      3  01020304  0a000001  mlx5_lon     1  \n" +
			"00000100 SERV     SYM                      0x9?                 0  00000000  00000000  mlx5_1       2  \n",
		"smcr linkgroup link-show ibdev mlx5_1": "LG-ID    LG-Role  LG-Type  Net-Dev         Link-State      #Conns  \n" +
			"00000100 SERV     SYM                      0x9?                 0  \n",
		"smcr info": "Kernel Capabilities\nSMC Version:      2.1\nSMC Hostname:     zhost                           \n" +
			"SMC-D Features:   v1 v2\nSMC-R Features:   v1\n\nHardware Capabilities\n" +
			"SEID:             IBM-SYSZ-ISMSEID0000000001234567\nISM:              v1 v2\nRoCE:             v1 v2\n",
		"smcd seid": "IBM-SYSZ-ISMSEID0000000001234567 [enabled]\n",
	} {
		b.want(line, want)
	}
}

// TestInfoProblems: what keeps a stack from its work is on standard error, and smcd, which is only of smc-tools, does not
// say it.
func TestInfoProblems(t *testing.T) {
	info := nl.SysInfo{Version: 2, Release: 1, Stack: "smcr", Problems: []string{"CAP_BPF is missing: give it", "no\x1bport"}}
	b := newBench(t, nltest.State{SysInfo: info})
	for line, want := range map[string]string{"smcr info": "smcr: problem: CAP_BPF is missing: give it\nsmcr: problem: no?port\n", "smcd info": ""} {
		if out, errOut, status := b.run(line); errOut != want || !strings.HasPrefix(out, "Kernel Capabilities\n") || status != 0 {
			t.Errorf("%s: %d, %q, %q, want %q", line, status, out, errOut, want)
		}
	}
}

// TestInfoUser checks the output for a user-space stack: it has no SMC-D, and its RoCE
// devices are no PCI functions.
func TestInfoUser(t *testing.T) {
	for roce, info := range map[string]nl.SysInfo{
		"v1 v2": {RoCEv1: true, RoCEv2: true}, "v1": {RoCEv1: true}, "v2": {RoCEv2: true}, "n/a": {},
	} {
		info.Version, info.Release, info.SMCRv2, info.Stack, info.LocalHost = 2, 1, true, "smcr", "host"
		b := newBench(t, nltest.State{SysInfo: info, Devices: []nl.Device{{Name: "soft-eth0"}}})
		b.want("smcr info", "Kernel Capabilities\nSMC Version:      2.1\nSMC Hostname:     host                            \n"+
			"SMC-D Features:   n/a\nSMC-R Features:   v1 v2\n\nHardware Capabilities\nSEID:             n/a\nISM:              n/a\nRoCE:             "+roce+"\n")
	}
}

// TestSEID checks the messages about the system enterprise ID.
func TestSEID(t *testing.T) {
	b := newBench(t, sample())
	if _, errOut, status := b.run("smcd seid disable"); status != tool.Failed ||
		errOut != "Error: System EID cannot be disabled because no User EID is defined\n" {
		t.Errorf("%d, %q", status, errOut)
	}
	b.run("smcd ueid add A.B")
	b.want("smcd seid disable", "")
	b.want("smcd seid", "IBM-SYSZ-ISMSEID0000000001234567 [disabled]\n")
	b.want("smcd seid enable", "")
}

// TestErrors checks the messages about errors of a stack.
func TestErrors(t *testing.T) {
	b := newBench(t, sample())
	for _, test := range []struct {
		err    error
		line   string
		status int
		text   string
	}{
		{nl.ErrNotSupported, "smcr linkgroup", 255, "Error: Operation not supported by kernel\n"},
		{nl.ErrNotSupported, "smcr ueid", 255, "Error: operation not supported by kernel\n"},
		{nl.ErrNotSupported, "smcd seid", 255, "Error: operation not supported by kernel\n"},
		{nl.ErrNotSupported, "smcd info", 255, "Error: Operation not supported by kernel\nError: Failed to retrieve ISM device count\n"},
		{nl.ErrNotSupported, "smcr stats", 0, "Error: Operation not supported by kernel\n"},
		{syscall.EPERM, "smcr ueid flush", 255, "Error: Operation not permitted\n"},
		{syscall.EINVAL, "smcr ueid add X", 255, "Error: specified User EID was rejected by the kernel\n"},
		{syscall.ENOMEM, "smcr ueid add X", 255, "Error: kernel reported an out of memory condition\n"},
		{syscall.EAGAIN, "smcr ueid del X", 255, "Info: the System EID was activated because the last User EID was removed\n"},
		{os.ErrClosed, "smcr device", 255, "Error: file already closed\n"},
	} {
		b.fake.SetError(test.err)
		out, errOut, status := b.run(test.line)
		if out != "" || errOut != test.text || status != test.status {
			t.Errorf("%v: %s: %d, %q, %q; want %q", test.err, test.line, status, out, errOut, test.text)
		}
	}
}

func TestHexadecimal(t *testing.T) {
	for word, want := range map[string]nl.LinkGroupID{
		"100": 0x100, "0x1aF": 0x1af, "1g": 1, "zz": noGroup, "": noGroup, " 7": 7, "-1": 0xffffffff, "+2": 2,
		"0x": 0, "0xg": 0, "123456789": 0x23456789, "@": noGroup, "`": noGroup,
	} {
		if got := hexadecimal(word); got != want {
			t.Errorf("%q: %x, want %x", word, got, want)
		}
	}
}
