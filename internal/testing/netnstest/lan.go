// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// LAN is hosts on one Ethernet switch. The links of a host are eth0 with the addresses
// 10.77.0.N and fd77::N, eth1 with 10.77.1.N and fd77:0:0:1::N, and so on. N is 1 for the
// first host. With one link, the prefixes are /24 and /64. With several, all IPv4 addresses
// are in one /16, and each link answers ARP only for its own addresses.
type LAN struct {
	// Hosts are the hosts, in the order of their addresses.
	Hosts []*Host

	// fabric is a network namespace with the switch, a bridge, and no process.
	fabric *Host
}

// NewLAN returns a LAN of n hosts, 1 to 25, on one switch, that the test owns: it is closed at the end of
// the test, and the test is skipped (or fails, see [Require]) without the privilege.
func NewLAN(t testing.TB, n int) *LAN {
	t.Helper()
	Require(t, "nsenter")
	l, err := CreateLAN(n, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// CreateLAN returns a new LAN of n hosts, 1 to 25, with 1 to 8 links each, outside a test;
// the caller closes it. It first removes what killed processes left behind.
func CreateLAN(n, links int) (*LAN, error) {
	if n < 1 || n > 25 || links < 1 || links > 8 {
		return nil, fmt.Errorf("netnstest: a LAN of %d hosts with %d links: must be 1 to 25 and 1 to 8", n, links)
	}
	if err := RemoveStale(); err != nil {
		return nil, err
	}
	base := fmt.Sprintf("%s%d-%d", prefix, os.Getpid(), pairs.n.Add(1))
	l := &LAN{fabric: newHost(base + "-z")}
	for i := range n {
		l.Hosts = append(l.Hosts, newHost(base+"-"+string(rune('a'+i))))
	}
	if err := l.create(links); err != nil {
		return nil, errors.Join(fmt.Errorf("netnstest: %w", err), l.Close())
	}
	return l, nil
}

func (l *LAN) create(links int) error {
	if err := l.fabric.create(); err != nil {
		return err
	}
	ns, err := netns.GetFromName(l.fabric.Name)
	if err != nil {
		return err
	}
	defer ns.Close()
	conn, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer conn.Close()
	bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	bridge.Name = "switch"
	if err := conn.LinkAdd(bridge); err != nil {
		return fmt.Errorf("create the switch: %w", err)
	}
	if err := conn.LinkSetUp(bridge); err != nil {
		return err
	}
	bits := 24
	if links > 1 {
		bits = 16
	}
	for i, h := range l.Hosts {
		if err := h.create(); err != nil {
			return err
		}
		if links > 1 {
			if err := h.answerOwnARP(); err != nil {
				return fmt.Errorf("host %d: %w", i+1, err)
			}
		}
		for link := range links {
			if err := h.plugIn(conn, ns, bridge, link, i, bits); err != nil {
				return fmt.Errorf("host %d, link %d: %w", i+1, link, err)
			}
		}
	}
	return nil
}

// answerOwnARP has each link answer ARP only for its own addresses, and ask with these. A
// peer would send packets to the wrong link otherwise.
func (h *Host) answerOwnARP() error {
	return h.Do(func() error {
		for name, value := range map[string]string{"arp_ignore": "1", "arp_announce": "2"} {
			if err := os.WriteFile("/proc/sys/net/ipv4/conf/all/"+name, []byte(value), 0); err != nil {
				return err
			}
		}
		return nil
	})
}

// plugIn joins a link of host i to the switch, which is in the namespace fabric that conn
// speaks to. bits is the length of the IPv4 prefix.
func (h *Host) plugIn(conn *netlink.Handle, fabric netns.NsHandle, bridge netlink.Link, link, i, bits int) error {
	ns, err := netns.GetFromName(h.Name)
	if err != nil {
		return err
	}
	defer ns.Close()
	own, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer own.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = fmt.Sprintf("eth%d", link)
	port := fmt.Sprintf("port%d-%d", link, i+1)
	// Both ends are born in their namespaces: nothing is ever visible in ours.
	if err := own.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: port, PeerNamespace: netlink.NsFd(int(fabric))}); err != nil {
		return fmt.Errorf("create veth pair: %w", err)
	}
	end, err := conn.LinkByName(port)
	if err != nil {
		return err
	}
	if err := conn.LinkSetMaster(end, bridge); err != nil {
		return fmt.Errorf("plug %s in: %w", port, err)
	}
	if err := conn.LinkSetUp(end); err != nil {
		return err
	}
	return h.setUp(own, attrs.Name, link, i+1, bits)
}

// Close ends every process on the hosts and removes their namespaces, in any state of the
// LAN, and may be called twice.
func (l *LAN) Close() error {
	var errs []error
	for _, h := range append(l.Hosts[:len(l.Hosts):len(l.Hosts)], l.fabric) {
		errs = append(errs, h.close())
	}
	return errors.Join(errs...)
}
