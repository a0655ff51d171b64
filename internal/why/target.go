// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"smcr/internal/cmdutil"
	"smcr/internal/reasons"
)

// A target is what the user asks about: a process, a port, an address, a unit, a container or pods. One of the fields is
// set, or number, or unit with program.
type target struct {
	pid    int
	port   uint16
	addr   netip.Addr     // any port
	pair   netip.AddrPort // address and port
	number int            // a process if there is one, otherwise a port
	unit   string         // of systemd, with its suffix
	host   string         // its name
	// hostPort is of host, or 0.
	hostPort uint16
	// program is the name without a suffix, which may be that of a program if there is no such unit.
	program string
	// container is a name or an ID, and pods are a UID, a name, or an annotation: see package containers.
	container, pods string
}

// forms says what an argument looks like.
const forms = "give a process (1234 or pid:1234), a port (:443), an address or host (10.1.0.5, hostA), one with a port (10.1.0.5:443), a unit of systemd (nginx), container:NAME or pod:NAME"

// parseTarget reads the argument. The error is one of usage.
func parseTarget(arg string) (target, error) {
	bad := func() (target, error) {
		text := forms
		if isReason(arg) {
			text = "for a reason, use 'smcr explain " + arg + "'"
		}
		return target{}, cmdutil.UsageError("%q is neither a process nor a port, an address, a unit or a container: %s", arg, text)
	}
	if word, ok := strings.CutPrefix(arg, "pid:"); ok {
		pid, err := strconv.ParseInt(word, 10, 32)
		if err != nil || pid <= 0 {
			return bad()
		}
		return target{pid: int(pid)}, nil
	}
	if name, ok := strings.CutPrefix(arg, "container:"); ok && name != "" {
		return target{container: name}, nil
	}
	if name, ok := strings.CutPrefix(arg, "pod:"); ok && name != "" {
		return target{pods: name}, nil
	}
	word, isPort := strings.CutPrefix(arg, "port:")
	if !isPort {
		if word, isPort = strings.CutPrefix(arg, ":"); isPort && strings.Contains(word, ":") {
			word, isPort = arg, false // an IPv6 address
		}
	}
	if isPort {
		port, err := strconv.ParseUint(word, 10, 16)
		if err != nil || port == 0 {
			return bad()
		}
		return target{port: uint16(port)}, nil
	}
	if n, err := strconv.ParseInt(arg, 10, 32); err == nil {
		if n <= 0 {
			return bad()
		}
		return target{number: int(n)}, nil
	}
	if a, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(arg, "["), "]")); err == nil && !a.IsUnspecified() {
		return target{addr: cmdutil.PlainAddr(a)}, nil
	}
	if p, err := netip.ParseAddrPort(arg); err == nil && p.Port() != 0 {
		if p.Addr().IsUnspecified() {
			return target{port: p.Port()}, nil
		}
		return target{pair: cmdutil.Plain(p)}, nil
	}
	if host, port, err := net.SplitHostPort(arg); err == nil && named.MatchString(host) {
		if p, err := strconv.ParseUint(port, 10, 16); err == nil && p != 0 {
			return target{host: host, hostPort: uint16(p)}, nil
		}
		return bad()
	}
	if isUnit(arg) {
		return target{unit: arg}, nil
	}
	if named.MatchString(arg) && !isReason(arg) {
		return target{unit: arg + ".service", program: arg}, nil
	}
	return bad()
}

// named is a name that a unit or a program may have, and no number or address.
var named = regexp.MustCompile(`^[0-9_.@\\-]*[A-Za-z][A-Za-z0-9_.@\\-]*$`)

// isReason reports whether an argument is the name or the number of a reason.
func isReason(arg string) bool {
	if _, ok := reasons.Named(arg); ok {
		return true
	}
	return strings.HasPrefix(arg, "0x") && len(reasons.Find(arg)) > 0
}

// String returns what is looked for, as a part of a sentence.
func (t target) String() string {
	switch {
	case t.pid != 0:
		return fmt.Sprintf("process %d", t.pid)
	case t.port != 0:
		return fmt.Sprintf("port %d", t.port)
	case t.addr.IsValid():
		return "address " + t.addr.String()
	case t.pair.IsValid():
		return t.pair.String()
	case t.unit != "":
		return t.unit
	case t.container != "":
		return "container " + t.container
	case t.pods != "":
		return "pod " + t.pods
	}
	return strconv.Itoa(t.number)
}

// check returns the argument of smcr check for the target.
func (t target) check() string {
	if t.addr.IsValid() {
		return t.addr.String() + ":PORT"
	}
	return t.String()
}
