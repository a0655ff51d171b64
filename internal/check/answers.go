// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"smcr/internal/retry"
)

// answerTimeout is the time limit for any answer of the host. If the kernel has an old
// neighbour entry for the host, it sends a new request only after 5 seconds.
const answerTimeout = 8 * time.Second

// discardPort is the TCP port of the discard service. Almost no host has this service,
// but a running host refuses the connection.
const discardPort = 9

// Answers reports whether a host answers, and how: it accepts or refuses a TCP
// connection, answers an ICMP echo request, or its address is resolved on the network
// device.
func (system) Answers(ctx context.Context, remote netip.Addr, netdev string) (string, bool) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	signs := make(chan string, 3) // one result of each method; "": no answer
	for _, f := range []func(context.Context, netip.Addr, string) string{tcpAnswer, echoAnswer, neighbourAnswer} {
		go func() { signs <- f(ctx, remote, netdev) }()
	}
	for range 3 {
		if how := <-signs; how != "" {
			return how, true
		}
	}
	return "", false
}

// tcpAnswer tries a TCP connection. Its first packet also makes the kernel resolve the
// address of a neighbour.
func tcpAnswer(ctx context.Context, remote netip.Addr, _ string) string {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", netip.AddrPortFrom(remote, discardPort).String())
	if err == nil {
		_ = c.Close()
		return "TCP"
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return "TCP"
	}
	return ""
}

// neighbourAnswer watches the neighbour table of the network device for remote.
func neighbourAnswer(ctx context.Context, remote netip.Addr, netdev string) string {
	link, err := netlink.LinkByName(netdev)
	if err != nil {
		return ""
	}
	family := unix.AF_INET
	if remote.Is6() {
		family = unix.AF_INET6
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		list, err := retry.Whole(netlink.ErrDumpInterrupted, func() ([]netlink.Neigh, error) { return netlink.NeighList(link.Attrs().Index, family) })
		if err != nil {
			return ""
		}
		for _, n := range list {
			if a, ok := netip.AddrFromSlice(n.IP); !ok || a.Unmap() != remote.WithZone("") {
				continue
			}
			switch {
			case n.State&unix.NUD_REACHABLE != 0:
				return "neighbour discovery"
			case n.State&unix.NUD_FAILED != 0:
				return ""
			}
		}
		select {
		case <-ctx.Done():
			return ""
		case <-tick.C:
		}
	}
}

// echoAnswer sends ICMP echo requests, if this user is permitted to.
func echoAnswer(ctx context.Context, remote netip.Addr, _ string) string {
	networks, typ, reply, protocol := []string{"udp4", "ip4:icmp"}, icmp.Type(ipv4.ICMPTypeEcho), icmp.Type(ipv4.ICMPTypeEchoReply), unix.IPPROTO_ICMP
	if remote.Is6() {
		networks, typ, reply, protocol = []string{"udp6", "ip6:ipv6-icmp"}, ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply, unix.IPPROTO_ICMPV6
	}
	var c *icmp.PacketConn
	var err error
	var to net.Addr
	for _, network := range networks {
		if c, err = icmp.ListenPacket(network, ""); err == nil {
			to = &net.UDPAddr{IP: remote.AsSlice(), Zone: remote.Zone()}
			if strings.HasPrefix(network, "ip") {
				to = &net.IPAddr{IP: remote.AsSlice(), Zone: remote.Zone()}
			}
			break
		}
	}
	if err != nil {
		return ""
	}
	defer c.Close()
	id := os.Getpid() & 0xffff
	for seq := 1; ctx.Err() == nil; seq++ {
		msg := icmp.Message{Type: typ, Body: &icmp.Echo{ID: id, Seq: seq, Data: []byte("smcr check")}}
		b, err := msg.Marshal(nil)
		if err != nil {
			return ""
		}
		if _, err := c.WriteTo(b, to); err != nil {
			return "" // for example, no route to host
		}
		if echoReplied(ctx, c, remote, protocol, reply) {
			return "ICMP echo"
		}
	}
	return ""
}

// echoReplied reports whether remote answers within a second.
func echoReplied(ctx context.Context, c *icmp.PacketConn, remote netip.Addr, protocol int, reply icmp.Type) bool {
	deadline := time.Now().Add(time.Second)
	if end, ok := ctx.Deadline(); ok && end.Before(deadline) {
		deadline = end
	}
	if c.SetReadDeadline(deadline) != nil {
		return false
	}
	buf := make([]byte, 1500)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return false
		}
		var ip net.IP
		switch a := from.(type) {
		case *net.UDPAddr:
			ip = a.IP
		case *net.IPAddr:
			ip = a.IP
		}
		a, ok := netip.AddrFromSlice(ip)
		if !ok || a.Unmap() != remote.WithZone("") {
			continue
		}
		if m, err := icmp.ParseMessage(protocol, buf[:n]); err == nil && m.Type == reply {
			return true
		}
	}
}
