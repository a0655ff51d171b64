// SPDX-License-Identifier: Apache-2.0

package smcchk

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"smcr/internal/retry"
	"smcr/internal/smctools/tool"

	"github.com/vishvananda/netlink"
)

const usageText = "\nUsage: smc_chk [OPTIONS] -C <IP>\n" +
	"       smc_chk [OPTIONS] -S\n" +
	"       smc_chk -i <iface>\n\n" +
	"Check SMC setup\n\n" +
	"   -C, --connect <IP>           connect to specified IP\n" +
	"   -d, --debug                  show debug messages\n" +
	"   -h, --help                   display this message\n" +
	"   -i, --pnetid <IFACE>         print PNET ID and exit\n" +
	"   -p, --port <PORT>            use the next free port starting\n" +
	"                                with PORT (default: 37373)\n" +
	"   -S, --server                 start server only\n" +
	"   -v, --version                display version info\n" +
	"   -6, --ipv6                   IP address is IPv6\n\n"

const defaultPort = 37373

// A mode is the kind of check.
type mode int

const (
	modeNone mode = iota
	modeAll       // static and live
	modeStatic
	modeLive
	modePNETID
	modeConnect
	modeServer
)

func (m mode) option() string {
	switch m {
	case modeStatic:
		return "'-s/--static-analysis'"
	case modeLive:
		return "'-l/--live-test'"
	case modePNETID:
		return "'-i/--pnetid'"
	case modeConnect:
		return "'-C/--connect'"
	case modeServer:
		return "'-S/--server'"
	}
	return ""
}

// A check is one command line of smc_chk.
type check struct {
	*tool.Env
	ctx   context.Context
	sysfs string // where sysfs is mounted

	mode   mode
	debugs bool
	ipv6   bool
	port   uint16
	target netip.Addr // of -C
	ifaces []string
}

// Main runs smc_chk and returns its exit status.
func Main(ctx context.Context, e *tool.Env, args []string) int {
	c := &check{Env: e, ctx: ctx, sysfs: "/sys", port: defaultPort}
	status, done := c.parse(args)
	if done {
		return status
	}
	return c.perform()
}

func (c *check) debug(format string, args ...any) {
	if c.debugs {
		c.Printf("[DEBUG] "+format+"\n", args...)
	}
}

// fail prints an error to standard output, as smc_chk of smc-tools does.
func (c *check) fail(format string, args ...any) (status int, done bool) {
	c.Printf("Error: "+format+"\n", args...)
	return 1, true
}

// parse reads the command line, and looks up hosts and interfaces at the same time.
func (c *check) parse(args []string) (status int, done bool) {
	g := tool.Getopt{Program: "getopt", Short: "C:dhi:lp:sSv6", Long: []tool.LongOption{
		{Name: "connect", Value: true, Short: 'C'}, {Name: "debug", Short: 'd'}, {Name: "help", Short: 'h'},
		{Name: "port", Value: true, Short: 'p'}, {Name: "pnetid", Value: true, Short: 'i'}, {Name: "server", Short: 'S'},
		{Name: "static-analysis", Short: 's'}, {Name: "live-test", Short: 'l'}, {Name: "version", Short: 'v'}, {Name: "ipv6", Short: '6'},
	}}
	opts, rest, ok := g.All(args, func(message string) { c.Errorf("%s\n", message) })
	if !ok {
		return 2, true
	}
	for _, o := range opts {
		switch o.Letter {
		case 'd':
			c.debugs = true
		case '6':
			c.ipv6 = true
		case 'h':
			c.Printf(usageText)
			return 0, true
		case 'v':
			c.Printf("smc_chk utility, smc-tools-%s\n", tool.Version)
			return 0, true
		case 'p':
			port, err := strconv.ParseUint(o.Value, 10, 16)
			if err != nil || port == 0 {
				return c.fail("Invalid port '%s'", o.Value)
			}
			c.port = uint16(port)
		default:
			if status, done := c.setMode(o); done {
				return status, done
			}
		}
	}
	if c.mode == modePNETID && len(rest) > 0 {
		return c.fail("Option -P/--print-PNETID takes no extra targets")
	}
	if c.mode == modeNone {
		c.Printf(usageText)
		return 0, true
	}
	if c.mode != modeConnect && c.mode != modeServer {
		c.ifaces = append(c.ifaces, rest...)
		return c.checkInterfaces()
	}
	return 0, false
}

// setMode reads an option that selects the mode.
func (c *check) setMode(o tool.Option) (status int, done bool) {
	m := map[byte]mode{'C': modeConnect, 'i': modePNETID, 'l': modeLive, 's': modeStatic, 'S': modeServer}[o.Letter]
	switch {
	case c.mode == modeLive && m == modeStatic, c.mode == modeAll:
		m = modeAll
	case c.mode != modeNone && c.mode != m:
		return c.fail("Cannot combine options %s and %s", c.mode.option(), m.option())
	}
	c.mode = m
	switch m {
	case modePNETID:
		c.ifaces = append(c.ifaces[:0], o.Value)
	case modeConnect:
		list, err := net.DefaultResolver.LookupNetIP(c.ctx, "ip", o.Value)
		if err != nil || len(list) == 0 {
			return c.fail("Unknown destination '%s'", o.Value)
		}
		c.target = list[0].Unmap()
		routes, err := netlink.RouteGet(c.target.AsSlice())
		if err != nil || len(routes) == 0 {
			return c.fail("No route to host: %s", o.Value)
		}
		link, err := netlink.LinkByIndex(routes[0].LinkIndex)
		if err != nil {
			return c.fail("No route to host: %s", o.Value)
		}
		c.ifaces = []string{link.Attrs().Name}
	}
	return 0, false
}

// checkInterfaces checks the given interfaces. Without any, it selects all interfaces
// that are up.
func (c *check) checkInterfaces() (status int, done bool) {
	if len(c.ifaces) == 0 {
		list, err := net.Interfaces()
		if err != nil {
			return c.fail("%v", err)
		}
		for _, i := range list {
			if i.Flags&net.FlagUp != 0 {
				c.ifaces = append(c.ifaces, i.Name)
			}
		}
		return 0, false
	}
	c.ipv6 = false // the interface decides
	for i, name := range c.ifaces {
		link, err := netlink.LinkByName(name) // finds alternative names too
		if err != nil {
			return c.fail("Interface %s does not exist", name)
		}
		if c.mode != modePNETID && link.Attrs().Flags&net.FlagUp == 0 {
			c.Printf("Error: %s is not an active interface\n", name)
			return 2, true
		}
		c.ifaces[i] = link.Attrs().Name
	}
	return 0, false
}

// perform carries out the command line.
func (c *check) perform() int {
	c.debug("Interfaces to check: %s", strings.Join(c.ifaces, " "))
	switch c.mode {
	case modePNETID:
		for _, i := range c.ifaces {
			if id := c.pnetid(i); id != "" {
				c.Printf("%s\n", id)
			}
		}
	case modeConnect:
		c.Printf("Test with target IP %s and port %d\n", c.target, c.port)
		c.Printf("  Live test (SMC-D and SMC-R)\n")
		c.connect(c.target, c.port)
		c.Printf("\n")
	case modeServer:
		return c.serve()
	default:
		return c.interfaces()
	}
	return 0
}

// interfaces checks interface after interface.
func (c *check) interfaces() int {
	var servers *servers
	if c.mode != modeStatic {
		var err error
		if servers, err = c.startServers(); err != nil {
			c.fail("%v", err)
			return 1
		}
		defer servers.stop()
	}
	for _, i := range c.ifaces {
		c.Printf("Checking active link:    "+c.bold("\x1b[1m")+"%s"+c.bold("\x1b(B\x1b[m")+"\n", i)
		if c.mode != modeLive {
			c.analyze(i)
		}
		if c.mode == modeStatic {
			continue
		}
		c.Printf("  Live test (SMC-D and SMC-R, EXPERIMENTAL)\n")
		c.debug("Determine IP for interface %s", i)
		switch prefixes := addresses(i); {
		case len(prefixes) == 0:
			c.Printf("     No usable IP address configured, skipping\n")
		case prefixes[0].Addr().Is4():
			c.connect(prefixes[0].Addr(), servers.port4)
		default:
			c.connect(prefixes[0].Addr(), servers.port6)
		}
		c.Printf("\n")
	}
	return 0
}

// bold returns a sequence for terminals.
func (c *check) bold(sequence string) string {
	if c.IO.IsTerminal() {
		return sequence
	}
	return ""
}

// addresses returns the IP addresses of an interface without link-local ones, IPv4
// first, in the order of ip-address(8).
func addresses(iface string) []netip.Prefix {
	link, err := netlink.LinkByName(iface)
	if err != nil {
		return nil
	}
	var out []netip.Prefix
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := retry.Whole(netlink.ErrDumpInterrupted, func() ([]netlink.Addr, error) { return netlink.AddrList(link, family) })
		if err != nil {
			continue
		}
		for _, a := range list {
			addr, ok := netip.AddrFromSlice(a.IP)
			if ok && a.Scope != int(netlink.SCOPE_LINK) {
				bits, _ := a.Mask.Size()
				out = append(out, netip.PrefixFrom(addr.Unmap(), bits))
			}
		}
	}
	return out
}
