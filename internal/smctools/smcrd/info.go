// SPDX-License-Identifier: Apache-2.0

package smcrd

import (
	"fmt"

	"smcr/internal/output"
	"smcr/internal/smctools/tool"
	"smcr/nl"
)

// info carries out the object info, which is the same for smcr and smcd.
func (t *commandLine) info(args []string) int {
	if len(args) > 1 || len(args) == 1 && !tool.IsPrefix(args[0], "show") {
		return t.misused("Usage: " + t.program() + " info [show]\n")
	}
	c, err := t.smcdControl()
	var ism []nl.Device
	if err == nil {
		ism, err = c.DevicesD(t.ctx)
	}
	if err != nil {
		t.failed(err)
		t.Errorf("Error: Failed to retrieve ISM device count\n")
		return tool.Failed
	}
	rnics, err := t.ctl.Devices(t.ctx)
	if err != nil {
		t.failed(err)
		t.Errorf("Error: Failed to retrieve RoCE device count\n")
		return tool.Failed
	}
	i, err := t.ctl.SysInfo(t.ctx)
	if err != nil {
		return t.failed(err)
	}

	// Only RNICs with a PCI function of IBM Z count.
	roce := ""
	for _, d := range rnics {
		switch pciOf(d).Device {
		case pciRoCE2, pciRoCE3:
			roce = "v1 v2"
		case pciRoCE1:
			if roce == "" {
				roce = "v1 "
			}
		}
	}
	smcd := output.SMCVersions(i.Version >= 2)
	if i.Stack != "" {
		// A user-space stack has software devices, and no SMC-D.
		smcd, roce = "", roceVersions(&i)
	}
	hasISM := ""
	if len(ism) > 0 {
		hasISM = output.SMCVersions(i.ISMv2)
	}
	version, host, seid := "", i.LocalHost, i.SEID
	if i.Version != 0 || i.Release != 0 {
		version = fmt.Sprintf("%d.%d", i.Version, i.Release)
	}
	if host != "" {
		host = fmt.Sprintf("%-32s", host)
	}
	if seid != "" {
		seid = fmt.Sprintf("%-32s", seid)
	}
	t.Printf("Kernel Capabilities\n"+
		"SMC Version:      %s\nSMC Hostname:     %s\nSMC-D Features:   %s\nSMC-R Features:   %s\n\n"+
		"Hardware Capabilities\n"+
		"SEID:             %s\nISM:              %s\nRoCE:             %s\n",
		known(version), known(host), known(smcd), output.SMCVersions(i.SMCRv2), known(seid), known(hasISM), known(roce))
	if !t.smcd {
		t.sayMore(&i)
	}
	return 0
}

// sayMore prints on standard error what a user-space stack has and the form of smc-tools does not: many messages name
// 'smcr info' to see what keeps the stack from its work.
func (t *commandLine) sayMore(i *nl.SysInfo) {
	for _, p := range i.Problems {
		t.Errorf("smcr: problem: %s\n", p)
	}
	if i.Stack != "" && t.IO.IsTerminal() {
		t.Errorf("smcr: 'smcr info -o table' shows the process, the devices and more\n")
	}
}

// roceVersions returns the versions of RoCE that a user-space stack supports.
func roceVersions(i *nl.SysInfo) string {
	switch {
	case i.RoCEv1 && i.RoCEv2:
		return "v1 v2"
	case i.RoCEv1:
		return "v1"
	case i.RoCEv2:
		return "v2"
	}
	return ""
}

func known(s string) string {
	if s == "" {
		return "n/a"
	}
	return s
}
