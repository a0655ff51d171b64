// SPDX-License-Identifier: Apache-2.0

package smctools

import (
	"context"
	"strconv"
	"strings"
	"syscall"

	"smcr/internal/printable"
	"smcr/internal/smctools/tool"
	"smcr/nl"
)

const pnetUsage = "Usage: %s [ OPTIONS ] [pnetid]\n" +
	"\t-h, --help            this message\n" +
	"\t-v, --version         show version information\n" +
	"\t-a, --add             add a pnetid entry, requires interface or ib/ism device\n" +
	"\t-d, --delete          delete a pnetid entry\n" +
	"\t-s, --show            show a pnetid entry\n" +
	"\t-f, --flush           flush the complete pnet table\n" +
	"\t-I, --interface       Ethernet interface name of a pnetid entry\n" +
	"\t-D, --ibdevice        Infiniband/ISM device name of a pnetid entry\n" +
	"\t-P, --ibport          Infiniband device port (default: 1)\n" +
	"\t\n" +
	"\tno OPTIONS            show complete pnet table\n"

var pnetOptions = []tool.LongOption{
	{Name: "interface", Value: true, Short: 'I'}, {Name: "ibdevice", Value: true, Short: 'D'},
	{Name: "ibport", Value: true, Short: 'P'}, {Name: "flush", Short: 'f'}, {Name: "add", Short: 'a'},
	{Name: "show", Short: 's'}, {Name: "delete", Short: 'd'}, {Name: "version", Short: 'v'}, {Name: "help", Short: 'h'},
}

// A pnetRequest is what a command line of smc_pnet asks for.
type pnetRequest struct {
	action         byte // 'a', 'd', 's' or 'f'
	id             string
	hasID          bool
	netdev, ibdev  string
	hasNet, hasDev bool
	port           uint8
}

// smcPNET runs smc_pnet, which shows and changes the table of pnetids, and returns its exit status.
func smcPNET(ctx context.Context, e *tool.Env, args []string) int {
	r, status, done := parsePNET(e, args)
	if done {
		return status
	}
	ctl, err := e.Open(ctx)
	if err != nil {
		return e.OpenFailed(err, e.Name)
	}
	defer ctl.Close()
	if err := r.perform(ctx, e, ctl); err != nil {
		e.Errorf("%s: %s\n", e.Name, tool.ErrorText(err))
		return 1
	}
	return 0
}

func parsePNET(e *tool.Env, args []string) (r pnetRequest, status int, done bool) {
	wrong := func(format string, args ...any) (pnetRequest, int, bool) {
		e.Errorf(format, args...)
		e.Errorf(pnetUsage, e.Name)
		return r, 1, true
	}
	g := tool.Getopt{Program: e.Name, Short: "I:D:P:fasdhv", Long: pnetOptions}
	g.Parse(args)
	for {
		opt, value, message := g.Next()
		if opt == 0 {
			break
		}
		switch opt {
		case 'f', 's', 'd', 'a':
			if r.action != 0 {
				return wrong("")
			}
			r.action = opt
		case 'I':
			r.netdev, r.hasNet = value, true
		case 'D':
			r.ibdev, r.hasDev = value, true
		case 'P':
			port, err := strconv.ParseUint(strings.TrimLeft(value, " \t"), 0, 8)
			if value != "" && (err != nil || port > 2 || strings.ContainsAny(value, "_bBoO")) {
				return wrong("%s invalid ib port:%s\n", e.Name, value)
			}
			r.port = uint8(port)
		case 'v':
			e.Printf("smc_pnet utility, smc-tools-%s\n", tool.Version)
			return r, 0, true
		case 'h':
			e.Printf(pnetUsage, e.Name)
			return r, 0, true
		default:
			return wrong("%s\n", message)
		}
	}
	rest := g.Rest()
	if len(rest) > 1 {
		return wrong("%s too many parameters\n", e.Name)
	}
	if len(rest) == 1 {
		r.id, r.hasID = rest[0], true
	}
	switch r.action {
	case 0:
		if r.hasID {
			return wrong("%s: parameters without option\n", e.Name)
		}
		r.action = 's'
	case 'f':
		if r.hasID {
			return wrong("%s: -f takes no parameters\n", e.Name)
		}
	case 'a':
		if !r.hasNet && !r.hasDev {
			return wrong("%s: interface or device missing\n", e.Name)
		}
		if r.port == 0 {
			r.port = 1
		}
	}
	if r.action == 's' || r.action == 'd' {
		if r.hasNet {
			e.Errorf("%s: interface %s ignored\n", e.Name, r.netdev)
		}
		if r.hasDev {
			e.Errorf("%s: device %s ignored\n", e.Name, r.ibdev)
		}
		if r.port != 0 {
			e.Errorf("%s: ibport %d ignored\n", e.Name, r.port)
		}
	}
	return r, 0, false
}

func (r pnetRequest) perform(ctx context.Context, e *tool.Env, ctl nl.Control) error {
	switch r.action {
	case 'a':
		if !r.hasID || r.hasNet && r.netdev == "" || r.hasDev && r.ibdev == "" {
			return syscall.EINVAL // the kernel's answer to a missing or empty name
		}
		p := nl.PNET{ID: r.id, NetDev: r.netdev, IBDev: r.ibdev}
		if r.hasDev {
			p.IBPort = r.port
		}
		return ctl.AddPNET(ctx, p)
	case 'd':
		if !r.hasID {
			return syscall.EOPNOTSUPP // the request would be a dump, which the command does not have
		}
		return ctl.RemovePNET(ctx, r.id)
	case 'f':
		if err := ctl.FlushPNET(ctx); !tool.IsErrno(err, syscall.ENOENT) {
			return err
		}
		return nil // older kernels refuse to flush an empty table
	}
	list, err := ctl.PNETs(ctx)
	if err != nil {
		return err
	}
	for _, p := range list {
		if r.hasID && strings.TrimRight(r.id, " ") != p.ID {
			continue
		}
		printable.Fprintf(e.IO.Out, "%s %s %s %d\n", p.ID, orNone(p.NetDev), orNone(p.IBDev), pnetPort(p))
	}
	return nil
}

func orNone(name string) string {
	if name == "" {
		return "n/a"
	}
	return name
}

// pnetPort returns the port of a RoCE device, or 255, like the kernel, if there is
// none.
func pnetPort(p nl.PNET) uint8 {
	if p.IBDev == "" {
		return 255
	}
	return p.IBPort
}
