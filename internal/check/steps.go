// SPDX-License-Identifier: Apache-2.0

package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/plain"
	"smcr/internal/printable"
	"smcr/internal/reasons"
	"smcr/nl"
	"smcr/pnet"
	"smcr/smc"
)

// A Result is the result of a step.
type Result string

// Results.
const (
	OK      Result = "ok"      // the step found what is needed
	Failed  Result = "FAILED"  // the step found what prevents SMC-R
	Skipped Result = "skipped" // the step was not made, because it needs an earlier one
	Warning Result = "warning" // the step found what does not prevent SMC-R
)

// color returns the color of a result on a terminal.
func (r Result) color() cmdutil.Color {
	switch r {
	case OK:
		return cmdutil.Green
	case Failed:
		return cmdutil.Red
	case Warning:
		return cmdutil.Yellow
	}
	return cmdutil.Faint
}

// A Step is one line of a check.
type Step struct {
	Name   string `json:"name"`
	Result Result `json:"result"`
	Text   string `json:"text"`
	Reason string `json:"reason,omitempty"` // name of the reason of a failed step, for smcr explain
	Advice string `json:"advice,omitempty"` // what to do if it failed
}

// A route is the route to a peer.
type route struct {
	NetDev  string       // outgoing network device
	Lower   []string     // the devices below, if it is a VLAN device, for example
	Local   netip.Prefix // local address on it, with the prefix length
	Gateway netip.Addr   // zero: the peer is in the same subnet
	IsLocal bool         // the peer is this host
}

// An outcome is the result of a test connection.
type outcome struct {
	TCPError  error          // TCP could not connect
	Announced bool           // the peer's SYN-ACK had the SMC option
	SMC       bool           // the connection used SMC
	Remote    bool           // the peer declined
	Reason    smc.Diagnosis  // reason of the decline
	Text      string         // text of an error other than a decline
	Local     netip.AddrPort // local address
	Took      time.Duration  // time until the result was known
	LinkGroup nl.LinkGroupID // 0: not known
	IBDev     string
}

// withinMachine says what carries a connection within a machine.
const withinMachine = "programs use TCP between their own sockets, see 'smcr explain local'"

// A checker checks one stack.
type checker struct {
	progress *cmdutil.Progress // nil: nobody is told
	env      environment
	host     string
	netdev   func(uint32) string
	addrs    []netip.Addr
	port     uint16
	hasPort  bool

	steps  []Step
	remote netip.Addr
	info   nl.SysInfo
	route  route
	v2     bool // version 2 with a common enterprise ID is possible
}

// add appends a step that has not failed.
func (c *checker) add(name string, r Result, format string, args ...any) bool {
	c.steps = append(c.steps, Step{Name: name, Result: r, Text: plain.Text(printable.Sprintf(format, args...))})
	return true
}

// fail appends a step that has failed for a reason of package reasons. If advice is empty,
// it is that of the reason.
func (c *checker) fail(name, reason, advice, format string, args ...any) bool {
	advice = printable.Line(advice)
	if r, ok := reasons.Named(reason); ok && advice == "" {
		advice = strings.Join(r.Cure, "\n")
	}
	c.steps = append(c.steps, Step{
		Name: name, Result: Failed, Text: plain.Text(printable.Sprintf(format, args...)), Reason: reason, Advice: advice,
	})
	return false
}

// reasonIn returns the name of the reason that a text gives, or else that of a code.
func reasonIn(text string, code smc.Diagnosis) string {
	if r, ok := reasons.In(text); ok {
		return r.Name
	}
	return cmp.Or(reasons.Name(code), "internal-error")
}

func (c *checker) ok() bool {
	return !slices.ContainsFunc(c.steps, func(s Step) bool { return s.Result == Failed })
}

// run carries out the steps until one fails. It skips the steps after that one,
// because they depend on it.
func (c *checker) run(ctx context.Context, b nl.Backend) {
	steps := []struct {
		name string
		f    func(context.Context, nl.Backend) bool
	}{
		{"stack", c.stack}, {"name", c.name}, {"eid", c.eid}, {"route", c.path}, {"device", c.device}, {"tcp", c.connect},
	}
	for i, s := range steps {
		c.progress.Now("checking " + c.host + ": " + s.name)
		if s.f(ctx, b) {
			continue
		}
		for _, later := range steps[i+1:] {
			c.add(later.name, Skipped, "depends on the failed step")
		}
		return
	}
}

func (c *checker) stack(ctx context.Context, b nl.Backend) bool {
	info, err := b.SysInfo(ctx)
	if err != nil {
		return c.fail("stack", "no-stack", "see 'smcr info'", "%s: %v", b.Name, err)
	}
	c.info = info
	if info.Stack != "" {
		c.add("stack", OK, "%s in user space, process %d, SMC version %d", info.Stack, info.PID, info.Version)
	} else {
		c.add("stack", OK, "%s, SMC version %d.%d", b.Name, info.Version, info.Release)
	}
	for _, p := range info.Problems {
		if p != info.NoWire {
			c.add("stack", Warning, "%s", p)
		}
	}
	if info.NoWire != "" {
		return c.fail("stack", reasonIn(info.NoWire, 0), "", "%s", info.NoWire)
	}
	return true
}

// name selects the address: the first one with a direct route.
func (c *checker) name(context.Context, nl.Backend) bool {
	c.remote = c.addrs[0]
	for _, a := range c.addrs {
		if r, err := c.env.Route(a); err == nil && !r.Gateway.IsValid() && !r.IsLocal {
			c.remote = a
			break
		}
	}
	if c.host == c.remote.String() {
		return true // the host was given as an address: no line for this step
	}
	return c.add("name", OK, "%s is %s", c.host, c.remote)
}

func (c *checker) eid(ctx context.Context, b nl.Backend) bool {
	if c.info.Version < 2 {
		return c.add("eid", Skipped, "version 1 of SMC needs no enterprise ID")
	}
	eids, err := b.UEIDs(ctx)
	if err != nil && !errors.Is(err, nl.ErrNotSupported) {
		return c.fail("eid", "no-stack", "see 'smcr ueid list'", "%v", err)
	}
	if s, err := b.SEID(ctx); err == nil && s.Enabled && s.Value != "" {
		eids = append(eids, s.Value)
	}
	only1 := c.info.RoCEv1 && !c.info.RoCEv2
	c.v2 = len(eids) > 0 && c.info.SMCRv2 && !only1
	if len(eids) > 0 && only1 {
		return c.add("eid", Warning, "%s, but the stack has no RoCE version 2: version 1 of SMC only", strings.Join(eids, ", "))
	}
	if len(eids) == 0 {
		return c.add("eid", OK, "none: version 1 of SMC only; for version 2 define one on both hosts with 'smcr ueid add'")
	}
	return c.add("eid", OK, "%s: the peer needs one of them for version 2", strings.Join(eids, ", "))
}

func (c *checker) path(context.Context, nl.Backend) bool {
	r, err := c.env.Route(c.remote)
	if err != nil {
		return c.fail("route", "off-link", fmt.Sprintf("see 'ip route get %s'", c.remote), "no route to %s: %v", c.remote, err)
	}
	c.route = r
	switch {
	case r.IsLocal:
		return c.add("route", OK, "%s is this machine: %s", c.remote, withinMachine)
	case r.Gateway.IsValid() && !c.v2:
		return c.fail("route", "behind-router", "use an address of the peer in a subnet of this host; or version 2 of SMC, with an enterprise ID (smcr ueid add) on both hosts",
			"%s is behind router %s: version 1 of SMC-R needs it in the same subnet", c.remote, r.Gateway)
	case r.Gateway.IsValid():
		return c.add("route", OK, "%s, via router %s: only version 2 of SMC-R works across routers", r.NetDev, r.Gateway)
	}
	return c.add("route", OK, "%s, local address %s: same subnet", r.NetDev, r.Local)
}

// device finds the RoCE ports for the route by the rules of the stacks.
func (c *checker) device(ctx context.Context, b nl.Backend) bool {
	if c.route.IsLocal {
		return c.add("device", Skipped, "not needed within a machine")
	}
	devices, err := b.Devices(ctx)
	if err != nil {
		return c.fail("device", "no-stack", "see 'smcr device list'", "%v", err)
	}
	pnets, err := b.PNETs(ctx)
	if err != nil {
		return c.fail("device", "no-stack", "see 'smcr pnet list'", "%v", err)
	}
	table := new(pnet.Table)
	for _, p := range pnets {
		_ = table.Add(p) // entries of a stack are valid
	}
	var ports []pnet.Port
	for _, d := range devices {
		for i, p := range d.Ports {
			if !p.Valid || d.Name == "" {
				continue
			}
			port := pnet.Port{Device: d.Name, Port: uint8(i + 1), NetDev: c.netdev(p.NetDev), Active: p.Active}
			// The stack reports this: a software device has the pnetid of its
			// netdev, which is not in the table.
			port.Hardware = p.PNETID
			ports = append(ports, port)
		}
	}
	netdev := pnet.NetDev{Name: c.route.NetDev, Lower: c.route.Lower}
	found, id := table.Match(netdev, ports)
	if len(found) > 0 {
		if !c.v2 && c.info.Stack == "" && c.onlyV2(found) {
			return c.fail("device", "v2-needed", "define the same enterprise ID on both hosts: smcr ueid add EID",
				"%s port %d has only RoCE version 2 GIDs, which need SMC version 2", found[0].Device, found[0].Port)
		}
		var names []string
		for _, p := range found {
			names = append(names, fmt.Sprintf("%s port %d", p.Device, p.Port))
		}
		return c.add("device", OK, "%s, active%s", strings.Join(names, ", "), because(id, c.route.NetDev))
	}
	for i := range ports {
		ports[i].Active = true
	}
	down, _ := table.Match(netdev, ports)
	switch {
	case len(down) > 0:
		p := down[0]
		return c.fail("device", "device-down", fmt.Sprintf("see 'ip link show %s'", p.NetDev), "%s port %d is not active", p.Device, p.Port)
	case id != "":
		return c.fail("device", "device-elsewhere", fmt.Sprintf("assign it to one: smcr pnet add %s -D IBDEV; see 'smcr device list' for the names", id),
			"no RoCE device has pnetid %s of netdev %s", id, c.route.NetDev)
	case len(ports) == 0:
		return c.fail("device", "no-smcr-device", "load the driver of the RNIC, or see 'smcr rnics'", "the stack has no RoCE device")
	}
	return c.fail("device", "device-elsewhere", fmt.Sprintf("assign one pnetid to both: smcr pnet add NET1 -I %s -D IBDEV; see 'smcr device list' for the names", c.route.NetDev),
		"no RoCE device on netdev %s, and no pnetid selects another one", c.route.NetDev)
}

// onlyV2 reports whether no port has a GID of RoCE version 1. Without such a GID, the
// kernel does not use a port for version 1 of SMC-R. Soft-RoCE has no such GID.
func (c *checker) onlyV2(ports []pnet.Port) bool {
	return !slices.ContainsFunc(ports, func(p pnet.Port) bool {
		types := c.env.GIDTypes(p.Device, p.Port)
		return len(types) == 0 || slices.Contains(types, "IB/RoCE v1")
	})
}

// because returns how a device was found.
func because(id, netdev string) string {
	if id == "" {
		return ", on the netdev of the route"
	}
	return fmt.Sprintf(", pnetid %s as netdev %s", id, netdev)
}

// connect carries out the steps that need a connection: the TCP handshake, the option
// in it, the CLC handshake.
func (c *checker) connect(ctx context.Context, b nl.Backend) bool {
	if c.route.IsLocal {
		return c.add("tcp", Skipped, "the option and the CLC handshake are not used within a machine")
	}
	if !c.hasPort {
		how, ok := c.env.Answers(ctx, c.remote, c.route.NetDev)
		if !ok {
			return c.fail("host", "host-silent", fmt.Sprintf("check 'ip neigh' and the firewalls on the path; if the host runs a server, give its port: smcr check %s", net.JoinHostPort(c.host, "PORT")),
				"%s does not answer", c.remote)
		}
		c.add("host", OK, "%s answers: %s", c.remote, how)
		c.steps = append(c.steps, Step{
			Name: "tcp", Result: Skipped, Text: "no port given: the peer was not asked whether it uses SMC-R",
			Advice: "give the port of a server there that uses it: smcr check " + printable.Line(net.JoinHostPort(c.host, "PORT")),
		})
		return true
	}
	remote := netip.AddrPortFrom(c.remote, c.port)
	out, err := c.env.Probe(ctx, b, remote)
	switch {
	case errors.Is(err, nl.ErrNotSupported):
		return c.add("tcp", Skipped, "this backend cannot test connections")
	case errors.Is(err, errNotAttached):
		return c.fail("tcp", "", "run it where programs are that use the stack, or start the stack with --cgroup or, in a pod, --pod-cgroup: see smcr-serve(8)", "%v", err)
	case err != nil:
		return c.fail("tcp", reasonIn(err.Error(), smc.DiagInternal), "", "%v", err)
	case out.Reason == smc.DiagLocal:
		return c.add("tcp", OK, "%s: %s", smc.DiagLocal.Text(), withinMachine)
	case out.TCPError != nil:
		reason := "tcp-fails"
		if errors.Is(out.TCPError, syscall.ECONNREFUSED) {
			reason = "server-refused"
		}
		return c.fail("tcp", reason, "", "no connection to %s: %v", remote, out.TCPError)
	}
	c.add("tcp", OK, "connected to %s in %v", remote, out.Took.Round(100*time.Microsecond))
	if !out.Announced {
		return c.fail("option", "peer-no-smc", "",
			"%s: it did not announce it in the TCP handshake", smc.DiagPeerNoSMC.Text())
	}
	c.add("option", OK, "the peer announced SMC in the TCP handshake")
	switch {
	case out.SMC && out.LinkGroup != 0:
		return c.add("clc", OK, "SMC-R, link group %s over %s", out.LinkGroup, out.IBDev)
	case out.SMC && out.IBDev != "":
		return c.add("clc", OK, "SMC-R over %s", out.IBDev)
	case out.SMC:
		return c.add("clc", OK, "SMC-R")
	case out.Reason == 0:
		return c.fail("clc", reasonIn(out.Text, 0), "", "%s", out.Text)
	}
	who := "this host"
	if out.Remote {
		who = "the peer"
	}
	name, advice := reasons.Name(out.Reason), ""
	if name == "" { // a code of a system that is not Linux
		advice = "see the logs of both hosts' stacks"
	}
	return c.fail("clc", name, advice, "%s declined: %s", who, out.Reason)
}
