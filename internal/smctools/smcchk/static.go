// SPDX-License-Identifier: Apache-2.0

package smcchk

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"smcr/internal/smctools/smcrnics"
	"smcr/nl"
)

// pnetid returns the pnetid of an interface: that of the hardware, or one that a
// user gave with a star after it.
func (c *check) pnetid(iface string) string {
	c.debug("Determine PNET ID for %s", iface)
	dir := filepath.Join(c.sysfs, "class/net", iface, "device")
	if b, err := os.ReadFile(filepath.Join(dir, "util_string")); err == nil {
		c.debug("PCI device, retrieve PNET ID via smc_rnics")
		port, _ := strconv.Atoi(line(c.sysfs, "class/net", iface, "dev_port"))
		if id := smcrnics.PNETID(b, port); id != "" {
			return id
		}
	}
	if chpid := line(dir, "chpid"); chpid != "" {
		c.debug("CCW device, retrieve PNET ID via sysfs")
		port, _ := strconv.Atoi(line(dir, "portno"))
		b, _ := os.ReadFile(filepath.Join(c.sysfs, "devices/css0/chp0."+strings.ToLower(chpid), "util_string"))
		if id := smcrnics.PNETID(b, port); id != "" {
			return id
		}
	}
	c.debug("No luck so far - try the SW PNET table")
	id := ""
	for _, p := range c.pnets() {
		if p.NetDev == iface {
			id = p.ID + "*"
		}
	}
	c.debug("PNET ID is '%s'", id)
	return id
}

// line returns the only line of a file, or "".
func line(path ...string) string {
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// pnets returns the table of the stack. Without a stack, it is empty.
func (c *check) pnets() []nl.PNET {
	ctl, err := c.Open(c.ctx)
	if err != nil {
		return nil
	}
	defer ctl.Close()
	list, _ := ctl.PNETs(c.ctx)
	return list
}

// analyze prints the SMC-D capabilities of an interface.
func (c *check) analyze(iface string) {
	c.Printf("  Static Analysis (SMC-D only, EXPERIMENTAL)\n")
	defer c.Printf("\n")
	id := c.pnetid(iface)
	v1, v2, seid, ueids := c.ism(id)
	c.Printf("     Configuration:      ")
	if len(v1) > 0 {
		c.Printf("SMC-Dv1 (ISMv1 FID(s): %s)\n", strings.Join(v1, " "))
	}
	if len(v2) > 0 {
		c.Printf("%*sSMC-Dv2 (ISMv2 FID(s): %s)\n", tab(len(v1) > 0), "", strings.Join(v2, " "))
	}
	if len(v1)+len(v2) == 0 {
		c.Printf("SMC-D not configured\n")
		return
	}
	c.Printf("     PNET ID:            %s\n", id)
	if seid.Enabled {
		c.Printf("     Advertising SEID:   %s\n", seid.Value)
	}
	for i, eid := range ueids {
		if i == 0 {
			c.Printf("     Advertising UEIDs:  ")
		}
		c.Printf("%*s%s\n", tab(i > 0), "", eid)
	}
	c.Printf("     Reachable subnets:  ")
	if len(v2) > 0 {
		c.Printf("Any\n")
		return
	}
	list := addresses(iface)
	for i, p := range list {
		c.Printf("%*s%s\n", tab(i > 0), "", p)
	}
	if len(list) == 0 {
		c.Printf("\n")
	}
}

// tab returns the width of the text before a value on a separate line.
func tab(own bool) int {
	if own {
		return 25
	}
	return 0
}

// ism returns the function IDs of the ISM devices that version 1 and version 2
// of SMC-D can use for a pnetid, and the enterprise IDs for version 2.
func (c *check) ism(id string) (v1, v2 []string, seid nl.SEID, ueids []string) {
	ctl, err := c.Open(c.ctx)
	if err != nil {
		return
	}
	defer ctl.Close()
	stack := ctl
	if b, ok := ctl.(nl.Backend); ok {
		stack = b.Control
	}
	d, ok := stack.(nl.ControlSMCD)
	if !ok {
		return
	}
	devices, err := d.DevicesD(c.ctx)
	info, err2 := ctl.SysInfo(c.ctx)
	if err != nil || err2 != nil {
		return
	}
	inUse := c.pnetidsInUse()
	for _, dev := range devices {
		if len(dev.Ports) == 0 || dev.PCI == nil {
			continue
		}
		has, fid := dev.Ports[0].PNETID, fmt.Sprintf("%x", dev.PCI.FID)
		if has != "" && has == strings.TrimSuffix(id, "*") {
			v1 = append(v1, fid)
		}
		if info.Version >= 2 && (has == "" || slices.Contains(inUse, has)) {
			v2 = append(v2, fid)
		}
	}
	seid, _ = ctl.SEID(c.ctx)
	ueids, _ = ctl.UEIDs(c.ctx)
	return
}

// pnetidsInUse returns the pnetids of all interfaces and those that users have set.
func (c *check) pnetidsInUse() []string {
	var list []string
	for _, p := range c.pnets() {
		list = append(list, p.ID)
	}
	entries, _ := os.ReadDir(filepath.Join(c.sysfs, "class/net"))
	for _, e := range entries {
		if id := c.pnetid(e.Name()); id != "" {
			list = append(list, strings.TrimSuffix(id, "*"))
		}
	}
	return list
}
