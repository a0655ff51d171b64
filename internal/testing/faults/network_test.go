// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
)

// The traffic of the faults of the network: long enough to go on after the fault.
const (
	networkConns = 4
	networkTime  = 5 * time.Second
	// faultTime is how long a fault lasts that is undone.
	faultTime = 1500 * time.Millisecond
)

// A networkFault is something that happens to the network of host B, on which the client
// runs.
type networkFault struct {
	name string
	// do makes the fault, and undo makes everything as before. undo may be nil.
	do, undo []string // lines of ip; B is the namespace of host B, A of host A, C of another one
	survive  int      // with so many devices, connections live on; 0 means never
}

// recreated stands for the lines that make eth0 of host B as before.
const recreated = "recreate eth0"

// recreate returns the lines of recreated. With one device, the other end is eth0 of host
// A. Else it is a port of the switch.
func (l *lab) recreate(devices int) []string {
	lines := []string{"ip -n A link add eth0 type veth peer name eth0 netns B",
		"ip -n A addr add 10.77.0.1/LEN dev eth0", "ip -n A -6 addr add fd77::1/64 dev eth0 nodad", "ip -n A link set eth0 up"}
	if devices > 1 {
		lines = []string{"ip -n C link add far0 type veth peer name eth0 netns B", "ip -n C link set far0 master lan up"}
	}
	return append(lines, "ip -n B addr add 10.77.0.2/LEN dev eth0", "ip -n B -6 addr add fd77::2/64 dev eth0 nodad", "ip -n B link set eth0 up")
}

var addressBack = []string{"ip -n B addr add 10.77.0.2/LEN dev eth0"}

var networkFaults = []networkFault{
	{"device down, then up", []string{"ip -n B link set eth0 down"}, []string{"ip -n B link set eth0 up"}, 2},
	{"device renamed", []string{"ip -n B link set eth0 down", "ip -n B link set eth0 name moved0", "ip -n B link set moved0 up"},
		[]string{"ip -n B link set moved0 down", "ip -n B link set moved0 name eth0", "ip -n B link set eth0 up"}, 2},
	{"device deleted", []string{"ip -n B link del eth0"}, []string{recreated}, 2},
	{"device moved to another namespace", []string{"ip -n B link set eth0 netns C name other0"},
		[]string{"ip -n C link del other0", recreated}, 2},
	{"MTU 1280", []string{"ip -n B link set eth0 mtu 1280"}, []string{"ip -n B link set eth0 mtu 1500"}, 1},
	{"MTU 9000", []string{"ip -n B link set eth0 mtu 9000", "ip -n A link set eth0 mtu 9000"},
		[]string{"ip -n B link set eth0 mtu 1500", "ip -n A link set eth0 mtu 1500"}, 1},
	// Too small for the packets that the link has agreed on.
	{"MTU 600", []string{"ip -n B link set eth0 mtu 600"}, []string{"ip -n B link set eth0 mtu 1500"}, 0},
	{"address removed, then added", []string{"ip -n B addr del 10.77.0.2/LEN dev eth0"}, addressBack, 2},
	{"address changed", []string{"ip -n B addr del 10.77.0.2/LEN dev eth0", "ip -n B addr add 10.77.0.102/LEN dev eth0"},
		[]string{"ip -n B addr del 10.77.0.102/LEN dev eth0", "ip -n B addr add 10.77.0.2/LEN dev eth0"}, 2},
	{"all devices down, then up", []string{"ip -n B link set eth0 down", "ip -n B link set lo down"}, []string{"ip -n B link set lo up", "ip -n B link set eth0 up"}, 0},
}

// TestNetwork changes the netdevs of a host under traffic. Connections live on if another
// device is left. Otherwise they may end with an error.
func TestNetwork(t *testing.T) {
	for _, devices := range []int{1, 2} {
		for i, f := range networkFaults {
			name := fmt.Sprintf("%s, %d devices", f.name, devices)
			if devices == 1 {
				name = f.name + ", 1 device"
			}
			t.Run(name, func(t *testing.T) {
				skipPart(t, i, len(networkFaults))
				l := newNetworkLab(t, devices)
				r := l.under(f.name, devices, func() {
					l.ip(devices, f.do)
					time.Sleep(faultTime) // Real time: the fault lasts so long.
					l.ip(devices, f.undo)
				})
				r.Outcome = "the connections end with an error, or live on"
				if f.survive > 0 && devices >= f.survive {
					r.Outcome = "the connections live on"
					if r.Failed > 0 {
						t.Errorf("%d connections failed", r.Failed)
					}
				}
				if err := l.settle(&r); err != nil {
					t.Errorf("%s: %v", f.name, err)
				}
				finish(t, r)
			})
		}
	}
}

// newNetworkLab is a lab with traffic that uses all devices.
func newNetworkLab(t *testing.T, devices int) *lab {
	t.Helper()
	netnstest.Require(t, "ip")
	l := newLab(t, netnstest.Options{Links: devices})
	if devices > 1 {
		l.joinSwitch(devices)
	} else {
		l.other = netnstest.New(t, netnstest.Options{}).A
	}
	l.serve(l.A)
	l.serve(l.B)
	l.serveTraffic()
	if err := l.healthy(2); err != nil {
		t.Fatal(err)
	}
	err := netnstest.Until(startTime, func() error {
		rows, err := l.rows(l.B, "link")
		if err == nil && len(rows) != devices {
			err = fmt.Errorf("%d links, want %d: %v", len(rows), devices, rows)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	l.measure()
	return l
}

// joinSwitch replaces host A, so that all devices of both hosts are on one switch, in one
// subnet: then a link group has as many links as there are devices.
func (l *lab) joinSwitch(devices int) {
	l.t.Helper()
	near := netnstest.New(l.t, netnstest.Options{Links: devices})
	old := l.A.Name // has the other ends of the devices of host B
	l.A, l.other = near.A, near.B
	lines := []string{"ip -n C link add lan type bridge", "ip -n C link set lan up"}
	for i := range devices {
		lines = append(lines, fmt.Sprintf("ip -n %s link set eth%d netns C name far%d", old, i, i))
		for _, end := range []string{"far", "eth"} {
			port := fmt.Sprintf("%s%d", end, i)
			lines = append(lines, "ip -n C addr flush dev "+port, "ip -n C link set "+port+" master lan up")
		}
		for host, h := range map[string]*netnstest.Host{"A": l.A, "B": l.B} {
			lines = append(lines, fmt.Sprintf("ip -n %s -4 addr flush dev eth%d", host, i),
				fmt.Sprintf("ip -n %s addr add %s/LEN dev eth%d", host, h.Links[i].IPv4, i))
		}
	}
	l.ip(devices, lines)
	// Each device must answer ARP only for its own address.
	for _, h := range []*netnstest.Host{l.A, l.B} {
		for _, set := range []string{"all.arp_ignore=1", "all.arp_announce=2", "all.rp_filter=0", "default.rp_filter=0"} {
			if out, err := h.Command(l.t.Context(), "sysctl", "-qw", "net.ipv4.conf."+set).CombinedOutput(); err != nil {
				l.t.Fatalf("%s: %v: %s", set, err, out)
			}
		}
		for i := range devices {
			if err := h.Do(func() error {
				return os.WriteFile(fmt.Sprintf("/proc/sys/net/ipv4/conf/eth%d/rp_filter", i), []byte("0"), 0)
			}); err != nil {
				l.t.Fatal(err)
			}
		}
	}
}

// ip runs lines of ip for the namespaces of the lab. C is that of the switch, or of another
// host.
func (l *lab) ip(devices int, lines []string) {
	l.t.Helper()
	length := "24"
	if devices > 1 {
		length = "16" // all devices are in one subnet
	}
	for _, line := range lines {
		if line == recreated {
			l.ip(devices, l.recreate(devices))
			continue
		}
		argv := strings.Fields(strings.ReplaceAll(line, "LEN", length))
		for i, a := range argv {
			if h := map[string]*netnstest.Host{"A": l.A, "B": l.B, "C": l.other}[a]; h != nil {
				argv[i] = h.Name
			}
		}
		if out, err := l.A.Command(l.t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
			l.t.Fatalf("%q: %v: %s", line, err, out)
		}
	}
}

// under makes a fault while a client runs, and returns what became of its connections.
func (l *lab) under(name string, devices int, do func()) Row {
	l.t.Helper()
	argv := l.clientArgs(networkConns, "-for", networkTime.String(), "-pause", "2ms")
	c := l.B.Go(l.t, argv[0], argv[1:]...)
	if err := netnstest.Until(startTime, func() error {
		rows, err := l.rows(l.B, "connection")
		if err == nil && len(rows) < networkConns {
			err = fmt.Errorf("%d connections", len(rows))
		}
		return err
	}); err != nil {
		l.t.Fatal(err)
	}
	time.Sleep(faultTime / 3) // Real time: traffic goes on before the fault.
	do()
	err := c.Wait(trafficTime)
	late := errors.Is(err, os.ErrDeadlineExceeded)
	c.Kill()
	r := outcome(networkConns, c.Log(), late, err)
	r.Fault, r.Runs = name, 1
	r.Traffic = fmt.Sprintf("%d devices", devices)
	if devices == 1 {
		r.Traffic = "1 device"
	}
	if !r.Good() || r.Failed > 0 {
		l.t.Logf("client: %s", c.Log())
	}
	return r
}

// TestNamespaceDeleted removes the name of the network namespaces under traffic. The
// kernel keeps a namespace as long as it has processes, so nothing must happen.
func TestNamespaceDeleted(t *testing.T) {
	for devices := range 2 {
		devices++
		t.Run(fmt.Sprint(devices), func(t *testing.T) {
			skipPart(t, devices, 8)
			l := newNetworkLab(t, devices)
			r := l.under("name of the namespaces deleted", devices, func() {
				for _, h := range []*netnstest.Host{l.A, l.B} {
					if err := unix.Unmount(h.Path(), unix.MNT_DETACH); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(faultTime) // Real time: the fault lasts so long.
				for _, h := range []*netnstest.Host{l.A, l.B} {
					ns := fmt.Sprintf("/proc/%d/ns/net", l.stacks[h].Pid())
					if err := unix.Mount(ns, h.Path(), "", unix.MS_BIND, ""); err != nil {
						t.Fatal(err)
					}
				}
			})
			r.Outcome = "the connections live on"
			if r.Failed > 0 {
				t.Errorf("%d connections failed", r.Failed)
			}
			if err := l.settle(&r); err != nil {
				t.Error(err)
			}
			finish(t, r)
		})
	}
}

// TestHostDeleted kills all processes of the server's host and deletes its network
// namespace under traffic. The client's connections end with an error. The kernel deletes the devices, and with one device that of
// the client, too, when the last sockets of the namespace have ended: soon or after minutes. So there is a run in which they go at once.
func TestHostDeleted(t *testing.T) {
	for i, atOnce := range []bool{false, false, true, true} {
		devices := 1 + i%2
		name, fault := fmt.Sprint(devices), "host of the server deleted"
		if atOnce {
			name, fault = name+", at once", fault+" with its devices"
		}
		t.Run(name, func(t *testing.T) {
			skipPart(t, 1+i, 8)
			l := newNetworkLab(t, devices)
			delete(l.watched, "stack of A")
			r := l.under(fault, devices, func() {
				pids, err := l.A.Pids()
				if err != nil {
					t.Fatal(err)
				}
				for _, pid := range pids {
					_ = unix.Kill(pid, unix.SIGKILL)
				}
				l.stacks[l.A].Kill()
				for i := range devices {
					if atOnce {
						l.ip(devices, []string{fmt.Sprintf("ip -n A link del eth%d", i)})
					}
				}
				if err := unix.Unmount(l.A.Path(), unix.MNT_DETACH); err != nil {
					t.Fatal(err)
				}
				if err := os.Remove(l.A.Path()); err != nil {
					t.Fatal(err)
				}
			})
			r.Outcome = "the connections end with an error"
			if r.Failed != networkConns {
				t.Errorf("%d connections failed, want %d", r.Failed, networkConns)
			}
			if err := errors.Join(l.noConnections(l.B), l.givenBack()); err != nil {
				r.Leaked++
				t.Error(err)
			}
			if ended(l.stacks[l.B]) {
				t.Errorf("the stack of B has ended:\n%s", l.stacks[l.B].Log())
			}
			finish(t, r)
		})
	}
}
