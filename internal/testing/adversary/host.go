// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"smcr/internal/testing/netnstest"
	"smcr/rdmaverbs/softroce/header"
	"smcr/smc"
	"smcr/userstack/network"
	"smcr/userstack/tcpopt"
)

// Identity is what a host says of itself in CLC messages.
type Identity struct {
	PeerID smc.PeerID
	// GID is that of version 2, an IPv4 address, and LinkGID that of version 1.
	GID, LinkGID smc.GID
	MAC          smc.MAC
	// Subnet is the subnet of the host, for version 1.
	Subnet netip.Prefix
}

// IdentityOf returns what an honest stack on a host would say with a given peer ID.
func IdentityOf(h *netnstest.Host, id smc.PeerID) Identity {
	l := h.Links[0]
	mac := smc.MAC(l.MAC)
	return Identity{
		PeerID: id, GID: l.IPv4.As16(), MAC: mac, Subnet: netip.PrefixFrom(l.IPv4, 24).Masked(),
		LinkGID: smc.GID{0xfe, 0x80, 8: mac[0] ^ 2, 9: mac[1], 10: mac[2], 11: 0xff, 12: 0xfe, 13: mac[3], 14: mac[4], 15: mac[5]},
	}
}

// Host is an attacker with a host of its own on the LAN.
type Host struct {
	*netnstest.Host
	// Own is what the host says of itself where it does not lie.
	Own Identity
	// Port has the UDP port of RoCE version 2.
	Port *Port

	option network.OptionMarker
}

// Open prepares a host. It loads the eBPF program that announces SMC in TCP handshakes,
// and takes the port of RoCE version 2, so the host must have no stack.
func Open(at *netnstest.Host) (*Host, error) {
	h := &Host{Host: at}
	mac := at.Links[0].MAC
	h.Own = IdentityOf(at, smc.NewPeerID(0xbad, smc.MAC(mac)))
	prog, err := tcpopt.Attach(tcpopt.Options{})
	if err != nil {
		return nil, fmt.Errorf("adversary: %w", err)
	}
	h.option = network.NewOptionMarker(prog)
	if h.Port, err = OpenPort(at, header.UDPPortRoCE); err != nil {
		return nil, errors.Join(err, h.option.Close())
	}
	return h, nil
}

// Close gives back what [Open] took. Connections are closed by those who made them.
func (h *Host) Close() error { return errors.Join(h.Port.Close(), h.option.Close()) }

// dialTime bounds a TCP connect.
const dialTime = 10 * time.Second

// Dial makes n TCP connections to a server whose SYNs announce SMC.
func (h *Host) Dial(ctx context.Context, to netip.AddrPort, n int) ([]*Dialog, error) {
	return h.DialFrom(ctx, netip.Addr{}, "", to, n)
}

// DialFrom is Dial from an address of the host, and by the netdev of a name, if these are not zero.
func (h *Host) DialFrom(ctx context.Context, from netip.Addr, netdev string, to netip.AddrPort, n int) ([]*Dialog, error) {
	d := net.Dialer{Timeout: dialTime, ControlContext: func(_ context.Context, _, _ string, rc syscall.RawConn) error {
		var merr error
		err := rc.Control(func(fd uintptr) {
			if merr = h.option.MarkConnect(int(fd)); merr == nil && netdev != "" {
				merr = unix.BindToDevice(int(fd), netdev)
			}
		})
		return errors.Join(err, merr)
	}}
	if from.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	d.SetMultipathTCP(false)
	var list []*Dialog
	err := h.Do(func() error {
		for range n {
			c, err := d.DialContext(ctx, "tcp4", to.String())
			if err != nil {
				return fmt.Errorf("adversary: %w", err)
			}
			list = append(list, &Dialog{Conn: c.(*net.TCPConn)})
		}
		return nil
	})
	if err != nil {
		for _, d := range list {
			_ = d.Close()
		}
		return nil, err
	}
	return list, nil
}

// Listen listens on a TCP port of the host, and announces SMC to clients that do.
func (h *Host) Listen(ctx context.Context, port uint16) (*net.TCPListener, error) {
	return h.ListenAt(ctx, netip.AddrPortFrom(h.Links[0].IPv4, port))
}

// ListenAt is Listen at an IPv4 address of the host.
func (h *Host) ListenAt(ctx context.Context, addr netip.AddrPort) (*net.TCPListener, error) {
	lc := net.ListenConfig{Control: func(_, _ string, rc syscall.RawConn) error {
		var merr error
		err := rc.Control(func(fd uintptr) { merr = h.option.MarkListen(int(fd)) })
		return errors.Join(err, merr)
	}}
	lc.SetMultipathTCP(false)
	var l net.Listener
	err := h.Do(func() (err error) {
		l, err = lc.Listen(ctx, "tcp4", addr.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("adversary: %w", err)
	}
	return l.(*net.TCPListener), nil
}
