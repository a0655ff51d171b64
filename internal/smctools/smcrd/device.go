// SPDX-License-Identifier: Apache-2.0

package smcrd

import (
	"fmt"

	"smcr/internal/output"
	"smcr/nl"
)

// PCI device IDs of the RNICs and the ISM device of IBM Z.
const (
	pciRoCE1 = 0x1004
	pciRoCE2 = 0x1016
	pciRoCE3 = 0x101e
	pciISM   = 0x04ed
)

func deviceType(id uint16) string {
	switch id {
	case pciRoCE1:
		return "RoCE_Express"
	case pciRoCE2:
		return "RoCE_Express2"
	case pciRoCE3:
		return "RoCE_Express3"
	case pciISM:
		return "ISM"
	case 0:
		return "0"
	}
	return fmt.Sprintf("%#x", id)
}

// device carries out the object device.
func (t *commandLine) device(args []string) int {
	s, ok := t.words(args, false)
	if !ok {
		text := "Usage: smcr device [show] [all]\n" +
			"                          [ibdev <dev>]\n" +
			"                          [netdev <dev>]\n"
		if t.smcd {
			text = "Usage: smcd device [show] [all]\n"
		}
		return t.misused(text)
	}
	var list []nl.Device
	var err error
	if t.smcd {
		var c nl.ControlSMCD
		if c, err = t.smcdControl(); err == nil {
			list, err = c.DevicesD(t.ctx)
		}
	} else {
		list, err = t.ctl.Devices(t.ctx)
	}
	if err != nil {
		return t.failed(err)
	}
	if len(list) == 0 {
		return 0 // no header either
	}
	if t.smcd {
		t.printISM(list)
	} else {
		t.printRNICs(list, s)
	}
	return 0
}

func (t *commandLine) printISM(list []nl.Device) {
	t.Printf("FID  Type  PCI-ID        PCHID  InUse  #LGs  PNET-ID  \n")
	for _, d := range list {
		pci := pciOf(d)
		var p nl.Port
		if len(d.Ports) > 0 {
			p = d.Ports[0]
		}
		t.Printf("%04x %-4s  %-12s  %04x   %-4s  %5d  %-16s \n",
			pci.FID, deviceType(pci.Device), pci.ID, pci.CHID, output.YesNo(d.Critical), d.UseCount, pnetid(p))
	}
}

func (t *commandLine) printRNICs(list []nl.Device, s selection) {
	details := t.detailLevel() > 0
	t.Printf("Net-Dev         IB-Dev   IB-P  IB-State  Type          Crit  ")
	if details {
		t.Printf(" FID   PCI-ID        PCHID  ")
	}
	t.Printf("#Links  PNET-ID  \n")
	for _, d := range list {
		pci := pciOf(d)
		for i, p := range d.Ports {
			netdev := t.NetDevName(p.NetDev)
			if !p.Valid || s.netdev != "" && s.netdev != netdev || s.netdev == "" && s.ibdev != "" && s.ibdev != d.Name {
				continue
			}
			state := "INACTIVE"
			if p.Active {
				state = "ACTIVE"
			}
			t.Printf("%-15s %-8.8s %4d  %8s  %-13s  %3s   ", netdev, d.Name, i+1, state, deviceType(pci.Device), output.YesNo(d.Critical))
			if details {
				t.Printf("%04x  %-12s  %04x    ", pci.FID, pci.ID, pci.CHID)
			}
			t.Printf("%5d  %-16s \n", p.Links, pnetid(p))
		}
	}
}

// pciOf returns the PCI function of a device, or zeros if it has none.
func pciOf(d nl.Device) nl.PCI {
	if d.PCI == nil {
		return nl.PCI{}
	}
	return *d.PCI
}

// shortPNETID returns a pnetid in the form of smc-tools, which omits the last of 16
// characters.
func shortPNETID(id string) string { return trim(id[:min(len(id), 15)]) }

// pnetid returns the pnetid of a port, with an asterisk before it if a user has set it.
func pnetid(p nl.Port) string {
	id := shortPNETID(p.PNETID)
	if p.PNETUser {
		id = "*" + id
	}
	return id
}
