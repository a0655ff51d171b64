// SPDX-License-Identifier: Apache-2.0

package softroce

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"smcr/guard"
	"smcr/rdmaverbs"
)

const (
	providerName = "softroce"
	namePrefix   = "soft-"
)

// Provider opens software RDMA devices, one for each netdev: "soft-eth0" is
// the device of netdev eth0. Devices are found and opened in the network
// namespace of the calling thread.
type Provider struct {
	c      config
	warned atomic.Bool
	gone   atomic.Bool // another process has the sockets of version 2
}

// warnNoV2 logs why a device has no RoCE version 2: the first time as a
// warning, then for debugging.
func (p *Provider) warnNoV2(why error) {
	level := slog.LevelDebug
	if !p.warned.Swap(true) {
		level = slog.LevelWarn
	}
	p.c.log.Log(context.Background(), level, "RoCE version 2 is not available, continuing with version 1", "err", why)
}

// config has the values that options of a Provider set.
type config struct {
	netdevs   []string // nil for all
	without   func(name string) bool
	types     []rdmaverbs.GIDType
	maxQP     int
	window    windowLimit
	log       *slog.Logger
	pollers   []Poller // if empty, goroutines do the I/O
	writeOnly bool
	noGSO     bool
	noRing    bool // no ring for sending
	guard     *guard.Guard

	siblings  *siblings // of the provider
	numbers   QPNs
	inherited *inheritance
}

// wants reports whether devices are to have GIDs of type t.
func (c *config) wants(t rdmaverbs.GIDType) bool {
	return len(c.types) == 0 || slices.Contains(c.types, t)
}

// Defaults of WithWindow: how much a queue pair keeps outstanding.
const (
	DefaultWindowPackets = 512     // packets
	DefaultWindowBytes   = 1 << 20 // bytes
)

const defaultMaxQP = 1 << 14

func defaultConfig() config {
	return config{
		maxQP:  defaultMaxQP,
		window: windowLimit{packets: DefaultWindowPackets, bytes: DefaultWindowBytes},
		log:    slog.New(slog.DiscardHandler),
	}
}

// An Option configures a Provider.
type Option func(*config)

// New returns a provider. Without options it offers every Ethernet netdev and
// lo, with RoCE version 1 and 2; entry 0 of a GID table is version 1. Where
// another program has UDP port 4791, devices have version 1 only: LacksV2 says
// so, and a warning of the logger.
func New(opts ...Option) *Provider {
	p := &Provider{c: defaultConfig()}
	p.c.siblings, p.c.inherited = new(siblings), new(inheritance)
	for _, o := range opts {
		o(&p.c)
	}
	return p
}

// WithNetdevs restricts the provider to these netdevs.
func WithNetdevs(names ...string) Option {
	names = slices.Clone(names)
	return func(c *config) { c.netdevs = names }
}

// WithoutNetdevs leaves out the netdevs for whose names none is true.
func WithoutNetdevs(none func(name string) bool) Option {
	return func(c *config) { c.without = none }
}

// WithGIDTypes restricts the GID tables, and so the RoCE versions, to these
// types.
func WithGIDTypes(types ...rdmaverbs.GIDType) Option {
	types = slices.Clone(types)
	return func(c *config) { c.types = types }
}

// WithMaxQP sets how many queue pairs a device can have.
func WithMaxQP(n int) Option { return func(c *config) { c.maxQP = n } }

// WithLogger sets the logger of devices. By default they do not log.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.log = l } }

// WithoutSegmentation sends each packet of RoCE version 2 as a separate message
// to the kernel. Without this option, one message carries many packets, and the
// kernel or the netdev splits it if it can (UDP_SEGMENT).
func WithoutSegmentation() Option { return func(c *config) { c.noGSO = true } }

// WithoutSendRing makes the kernel copy each packet of RoCE version 1. Without
// this option, large batches are written into memory from which the kernel
// sends (PACKET_TX_RING).
func WithoutSendRing() Option { return func(c *config) { c.noRing = true } }

// WithWindow limits what a queue pair keeps outstanding: packets, and bytes of
// payload. The receive buffer of the peer must have room for this, times the
// number of queue pairs that send at once; packets that it loses are sent
// again. A value of 0 or less keeps the default.
func WithWindow(packets, bytes int) Option {
	return func(c *config) {
		if packets > 0 {
			c.window.packets = min(packets, psnHalf/2)
		}
		if bytes > 0 {
			c.window.bytes = bytes
		}
	}
}

// Name returns "softroce".
func (p *Provider) Name() string { return providerName }

// DeviceName returns the name of a device that is given by its name or by its netdev.
// It does not look whether there is such a device.
func DeviceName(deviceOrNetDev string) string {
	if strings.HasPrefix(deviceOrNetDev, namePrefix) {
		return deviceOrNetDev
	}
	return namePrefix + deviceOrNetDev
}

// netdev returns the netdev of a device name, and whether the provider offers
// it.
func (p *Provider) netdev(device string) (string, bool) {
	name, ok := strings.CutPrefix(device, namePrefix)
	return name, ok && name != "" && (p.c.netdevs == nil || slices.Contains(p.c.netdevs, name)) && (p.c.without == nil || !p.c.without(name))
}

var _ rdmaverbs.Explainer = (*Provider)(nil)
