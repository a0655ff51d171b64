// SPDX-License-Identifier: Apache-2.0

package smcrd

import (
	"fmt"

	"smcr/internal/output"
	"smcr/nl"
	"smcr/smc"
)

// linkgroup carries out the object linkgroup.
func (t *commandLine) linkgroup(args []string) int {
	s, ok := t.words(args, true)
	if !ok {
		text := "Usage: smcr linkgroup [show | link-show] [all | LG-ID]\n" +
			"                                         [ibdev <dev>]\n" +
			"                                         [netdev <dev>]\n"
		if t.smcd {
			text = "Usage: smcd linkgroup [show] [all | LG-ID]\n"
		}
		return t.misused(text)
	}
	var err error
	switch {
	case t.smcd:
		err = t.groupsD(s)
	case s.links:
		err = t.links(s)
	default:
		err = t.groups(s)
	}
	if err != nil {
		return t.failed(err)
	}
	return 0
}

func role(r smc.Role) string {
	if r != smc.Client {
		return "SERV"
	}
	return "CLNT"
}

func groupType(g smc.GroupType) string {
	if g <= smc.GroupAsymmetricLocal {
		return g.String()
	}
	return fmt.Sprintf("%#x?", uint8(g))
}

func linkState(s smc.LinkState) string {
	if s <= smc.LinkActive {
		return "LINK_" + s.String()
	}
	return fmt.Sprintf("%#x?", uint32(s))
}

func peerOS(os smc.OS) string {
	switch os {
	case smc.OSZOS, smc.OSLinux, smc.OSAIX:
		return os.String()
	case 0:
		return "Unknown (0)"
	}
	return fmt.Sprintf("Unknown (%#x)", uint8(os))
}

// vlan returns a VLAN ID in hexadecimal. Like the C library, it writes 0 without 0x.
func vlan(v uint16) string {
	if v == 0 {
		return "0"
	}
	return fmt.Sprintf("%#x", v)
}

func (t *commandLine) groups(s selection) error {
	list, err := t.ctl.LinkGroups(t.ctx)
	if err != nil || len(list) == 0 {
		return err
	}
	defer t.Buffer()()
	details := t.detailLevel() > 0
	if !details {
		t.Printf("LG-ID    LG-Role  LG-Type  VLAN  #Conns  PNET-ID \n")
	}
	first := true
	for _, g := range list {
		if s.typed != 0 && s.group != g.ID {
			continue
		}
		if !details {
			t.Printf("%s %-8s %-8s %4s  %6d  %-16s \n", g.ID, role(g.Role), groupType(g.Type), vlan(g.VLAN), g.Conns, shortPNETID(g.PNETID))
			continue
		}
		if !first {
			t.Printf("\n")
		}
		first = false
		t.Printf("LG-ID    : %s\nLG-Role  : %s\nLG-Type  : %s\nVLAN     : %x\nPNET-ID  : %s\n",
			g.ID, role(g.Role), groupType(g.Type), g.VLAN, shortPNETID(g.PNETID))
		t.version(g.V2, &g)
		t.Printf("#Conns   : %d\nSndbuf   : %d B\nRMB      : %d B\n", g.Conns, g.Sndbuf, g.RMB)
	}
	return nil
}

// version prints the information of version 2 about the peer. g is nil for SMC-D.
func (t *commandLine) version(v *nl.V2Common, g *nl.LinkGroup) {
	if v == nil {
		t.Printf("Version  : 1\n")
		return
	}
	t.Printf("Version  : %d\nPeer-Rel : %d\nPeer-Host: %s\nPeer-OS  : %s\n", v.Version, v.Release, trim(v.PeerHost), peerOS(v.OS))
	if g != nil {
		t.Printf("Direct   : %s\n", output.YesNo(g.V2R != nil && g.V2R.Direct))
	}
	t.Printf("EID      : %-32s\n", v.EID)
}

func (t *commandLine) groupsD(s selection) error {
	c, err := t.smcdControl()
	if err != nil {
		return err
	}
	list, err := c.LinkGroupsD(t.ctx)
	if err != nil || len(list) == 0 {
		return err
	}
	defer t.Buffer()()
	details := t.detailLevel() > 0
	if !details {
		t.Printf("LG-ID    VLAN  #Conns  PNET-ID \n")
	}
	first := true
	for _, g := range list {
		if s.typed != 0 && s.typed != g.ID {
			continue
		}
		if !details {
			t.Printf("%s %4s  %6d  %-16s \n", g.ID, vlan(g.VLAN), g.Conns, shortPNETID(g.PNETID))
			continue
		}
		if !first {
			t.Printf("\n")
		}
		first = false
		t.Printf("LG-ID    : %s\nVLAN     : %x\nPNET-ID  : %s\n", g.ID, g.VLAN, shortPNETID(g.PNETID))
		t.version(g.V2, nil)
		t.Printf("#Conns   : %d\nSndbuf   : %d B\nDMB      : %d B\n", g.Conns, g.Sndbuf, g.DMB)
	}
	return nil
}

func (t *commandLine) links(s selection) error {
	list, err := t.ctl.Links(t.ctx)
	if err != nil || len(list) == 0 {
		return err
	}
	defer t.Buffer()()
	level := t.detailLevel()
	t.Printf("LG-ID    LG-Role  LG-Type  Net-Dev         Link-State      #Conns  ")
	if level > 0 {
		t.Printf("Link-UID  Peer-UID  IB-Dev    IB-P  ")
	}
	if level > 1 {
		t.Printf("Local-GID                                 Peer-GID  ")
	}
	t.Printf("\n")
	for _, l := range list {
		netdev := t.NetDevName(l.NetDev)
		var show bool
		switch {
		case s.netdev != "":
			show = s.netdev == netdev
		case s.ibdev != "":
			show = s.ibdev == l.IBDev
		default:
			show = s.typed == 0 || s.group == l.LinkGroup
		}
		if !show {
			continue
		}
		t.Printf("%s %-8s %-8s %-15s %-15s %6d  ", l.LinkGroup, role(l.Role), groupType(l.Type), netdev, linkState(l.State), l.Conns)
		if level > 0 {
			t.Printf("%s  %s  %-8.8s  %4d  ", l.UID, l.PeerUID, l.IBDev, l.IBPort)
		}
		if level > 1 {
			t.Printf("%-40s  %s  ", l.GID, l.PeerGID)
		}
		t.Printf("\n")
	}
	return nil
}
