// SPDX-License-Identifier: Apache-2.0

package smcrnics

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"strings"

	"smcr/internal/smctools/tool"
	"smcr/nl"
)

const usageText = "\nUsage: smc_rnics [ OPTIONS ] [ FID ]\n\n" +
	"List RNICs\n\n" +
	"   -a, --all            include disabled devices in output\n" +
	"   -d, --disable <FID>  disable the specified FID\n" +
	"   -e, --enable <FID>   enable the specified FID\n" +
	"   -h, --help           display this message\n" +
	"   -I, --IB-dev         display IB-dev instead of netdev attributes\n" +
	"   -r, --rawids         display 'type' as raw vendor/device IDs\n" +
	"   -v, --version        display version info\n\n"

// Exit statuses.
const (
	exitArch      = 1 // not an IBM Z machine
	exitUsage     = 2
	exitInvalid   = 3 // not a function ID
	exitTarget    = 4 // a function ID to show, and one to change
	exitUnknown   = 5
	exitNoChange  = 6 // the function is already on or off
	exitRefused   = 7
	exitNotListed = 8
)

// Main runs smc_rnics and returns its exit status.
func Main(ctx context.Context, e *tool.Env, args []string) int {
	return run(ctx, e, args, runtime.GOARCH, NewFS("/sys", Firmware))
}

func run(ctx context.Context, e *tool.Env, args []string, arch string, fs FS) int {
	g := tool.Getopt{Program: "getopt", Short: "hIrvae:d:", Long: []tool.LongOption{
		{Name: "all", Short: 'a'}, {Name: "enable", Value: true, Short: 'e'}, {Name: "disable", Value: true, Short: 'd'},
		{Name: "help", Short: 'h'}, {Name: "IB-dev", Short: 'I'}, {Name: "rawids", Short: 'r'}, {Name: "version", Short: 'v'},
	}}
	opts, rest, ok := g.All(args, func(message string) { e.Errorf("%s\n", message) })
	if !ok {
		return exitUsage
	}
	var o Options
	action, fid, target := "", "", ""
	for _, opt := range opts {
		switch opt.Letter {
		case 'a':
			o.All = true
		case 'e':
			action, fid = "enable", opt.Value
		case 'd':
			action, fid = "disable", opt.Value
		case 'h':
			e.Printf(usageText)
			return 0
		case 'I':
			o.IBDev = true
		case 'r':
			o.Raw = true
		case 'v':
			e.Printf("smc_rnics utility, smc-tools-%s\n", tool.Version)
			return 0
		}
	}
	for _, word := range rest {
		if target, ok = functionID(word); !ok {
			e.Errorf("Error: '%s' is not a valid FID\n", strings.TrimPrefix(word, "0x"))
			return exitInvalid
		}
	}
	if arch != "s390x" && arch != "s390" {
		e.Errorf("Error: s390/s390x supported only\n")
		return exitArch
	}
	if action != "" {
		if target != "" {
			e.Printf(usageText)
			return exitTarget
		}
		return change(e, fs, action, fid)
	}
	o.FID = target
	o.PNETs = func() []nl.PNET { return pnets(ctx, e) }
	lines, missing := fs.List(o)
	port, what := "PPrt", "Net-Dev"
	if o.IBDev {
		port, what = "IPrt", "IB-Dev"
	}
	vf := "VF "
	if o.Raw {
		vf = "VFN"
	}
	e.Printf("FID   Power  PCI_ID        PCHID  Type             PFT   %s  %s  PNET_ID            %s\n%s\n", vf, port, what, strings.Repeat("-", 100))
	for _, l := range lines {
		e.Printf("%s\n", l)
	}
	for _, fid := range missing {
		e.Errorf("Error: No matching device found for FID %s\n", fid)
	}
	if target != "" && len(lines) == 0 {
		return exitNotListed
	}
	return 0
}

// functionID returns a function ID in eight digits.
func functionID(word string) (string, bool) {
	digits := strings.TrimPrefix(word, "0x")
	if digits == "" || strings.Trim(digits, "0123456789abcdefABCDEF") != "" {
		return "", false
	}
	v, err := strconv.ParseUint(digits, 16, 64)
	return fmt.Sprintf("%08x", v), err == nil
}

func change(e *tool.Env, fs FS, action, word string) int {
	fid, ok := functionID(word)
	if !ok {
		e.Errorf("Error: '%s' is not a valid FID\n", strings.TrimPrefix(word, "0x"))
		return exitInvalid
	}
	short := strings.TrimLeft(fid, "0")
	if short == "" {
		short = "0"
	}
	power, err := fs.Power(fid)
	if err != nil {
		e.Errorf("Error: FID %s does not exist\n", short)
		return exitUnknown
	}
	if power == (action == "enable") {
		e.Errorf("Error: FID %s is already %sd\n", short, action)
		return exitNoChange
	}
	if err := fs.SetPower(fid, action == "enable"); err != nil {
		e.Errorf("Error: Failed to %s FID %s\n", action, short)
		return exitRefused
	}
	return 0
}

// pnets returns the table of pnetids that users have set. It is empty on a machine
// without SMC.
func pnets(ctx context.Context, e *tool.Env) []nl.PNET {
	ctl, err := e.Open(ctx)
	if err != nil {
		return nil
	}
	defer ctl.Close()
	list, _ := ctl.PNETs(ctx)
	return list
}

// softPNETID returns the pnetid that users have set for a device, or "n/a".
func (o Options) softPNETID(netdev, address string, port int) string {
	id := "n/a"
	for _, p := range o.PNETs() {
		hit := p.NetDev != "" && p.NetDev == netdev || p.IBDev != "" && p.IBDev == address
		if hit && (p.IBDev == "" || int(p.IBPort) == port) {
			id = p.ID + "*"
		}
	}
	return id
}
