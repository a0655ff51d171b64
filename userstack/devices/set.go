// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"smcr/guard"
	"smcr/pnet"
	"smcr/rdmaverbs"
	"smcr/userstack/network"
)

// ErrNoDevice means that no RoCE device serves the network of a connection.
var ErrNoDevice = errors.New("userstack: no RoCE device for this network")

// ErrClosed is returned when a device is needed after Close.
var ErrClosed = errors.New("devices: the devices of the stack are closed")

// openTimeout bounds each call of a provider.
const openTimeout = 5 * time.Second

// Config configures a [Set].
type Config struct {
	// Providers are asked for devices, the preferred one first.
	Providers []rdmaverbs.Provider
	Network   network.Network
	PNETs     *pnet.Table
	// NetDevs are the netdevs that may carry RoCE. Empty means all.
	NetDevs []string
	// Changed is called when a port has been opened, has gone up or down, or has new
	// GIDs or a new MTU, and before a device is closed because it has failed. It may
	// be called by several goroutines at once. It must not be nil.
	Changed func(p *Port, up bool)
	// Guard handles panics in Changed, and in devices of providers that have goroutines of
	// their own (SetGuard). It must not be nil.
	Guard *guard.Guard
	Log   *slog.Logger
}

// A guarded provider has goroutines, and lets a guard handle their panics.
type guarded interface{ SetGuard(g *guard.Guard) }

// A Set has the devices of a stack. [New] makes one.
type Set struct {
	cfg Config
	log *slog.Logger

	listMu sync.Mutex // one listing at a time; before mu
	listed listing

	// opening is held while a device is opened, which may wait for the round of an engine. That may want mu, which is only held for a moment.
	opening  sync.Mutex // taken before mu
	mu       sync.Mutex
	open     map[key]*Device
	lastPort int
	closed   bool
	warned   map[string]string // reasons that were logged, by netdev or provider
	logged   map[portKey]bool  // the states that the log says
	leaving  sync.WaitGroup    // failed devices, while they are closed
}

// portKey tells ports apart.
type portKey struct {
	key
	num int
}

// key tells devices apart.
type key struct {
	provider int // index in Config.Providers
	name     string
}

// New returns a set. It opens nothing.
func New(cfg Config) *Set {
	for _, p := range cfg.Providers {
		if p, ok := p.(guarded); ok {
			p.SetGuard(cfg.Guard)
		}
	}
	return &Set{cfg: cfg, log: cfg.Log, open: map[key]*Device{}, warned: map[string]string{}}
}

// Port returns the port of an open device by its ID, or nil.
func (s *Set) Port(id int) *Port {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.open {
		for _, p := range d.ports {
			if p.id == id {
				return p
			}
		}
	}
	return nil
}

// Open returns all open devices, in the order in which they were opened.
func (s *Set) Open() []*Device {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sorted()
}

// sorted returns the open devices in the order of opening. mu is held.
func (s *Set) sorted() []*Device {
	return slices.SortedFunc(maps.Values(s.open), func(a, b *Device) int { return cmp.Compare(a.ports[0].id, b.ports[0].id) })
}

// port returns the port of a candidate, and opens its device if necessary.
func (s *Set) port(c candidate) (*Port, error) {
	if d, _ := s.opened(c); d != nil {
		return d.port(c)
	}
	s.opening.Lock()
	defer s.opening.Unlock()
	if d, closed := s.opened(c); d != nil {
		return d.port(c)
	} else if closed {
		return nil, ErrClosed
	}
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	rdma, err := s.cfg.Providers[c.provider].Open(ctx, c.name)
	if err != nil {
		return nil, err
	}
	d := &Device{key: c.key, rdma: rdma, attr: rdma.Attr(), done: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	for num := 1; num <= max(1, d.attr.NumPorts); num++ {
		s.lastPort++
		d.ports = append(d.ports, &Port{id: s.lastPort, num: num, dev: d})
	}
	s.open[c.key] = d
	delete(s.warned, c.NetDev)
	go s.watch(d)
	s.log.Debug("opened device", "dev", rdma.Name())
	return d.port(c)
}

// opened returns the device of a candidate, or nil if it is not open, and whether the set is closed.
func (s *Set) opened(c candidate) (d *Device, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[c.key], s.closed
}

// isOpen returns the port of a candidate if its device is open, or nil.
func (s *Set) isOpen(c candidate) *Port {
	if d, _ := s.opened(c); d != nil {
		p, _ := d.port(c)
		return p
	}
	return nil
}

// warn logs a problem once for each reason. what is the netdev or provider.
func (s *Set) warn(msg, kind, what string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if why := err.Error(); s.warned[what] != why {
		s.warned[what] = why
		s.log.Warn(msg, kind, what, "err", err)
	}
}

// watch reports what happens to a device, until it is closed.
func (s *Set) watch(d *Device) {
	defer close(d.done)
	for _, p := range d.ports {
		s.changed(p, false) // link groups that exist may use a new device
	}
	for ev := range d.rdma.Events() {
		failed := ev.Type == rdmaverbs.EventDeviceFatal
		for _, p := range d.ports {
			if failed || ev.Port == p.num || ev.Port < 1 || ev.Port > len(d.ports) {
				s.changed(p, failed || ev.Type == rdmaverbs.EventPortErr)
			}
		}
		if failed {
			s.discard(d)
		}
	}
}

// changed reports the state of a port. With down it is down whatever the device says.
func (s *Set) changed(p *Port, down bool) {
	up := !down && p.Active()
	log := s.log
	if len(p.dev.ports) > 1 {
		log = log.With("port", p.num)
	}
	if s.news(p, up) {
		log.Info("device", "dev", p.Name(), "up", up)
	}
	_ = s.cfg.Guard.Do("a change of a device", func() { s.cfg.Changed(p, up) })
}

// news reports whether a port has another state than the log says. A provider also tells of
// changes that change nothing here, and an unused device is opened again for each listing.
func (s *Set) news(p *Port, up bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := portKey{p.dev.key, p.num}
	if last, ok := s.logged[k]; ok && last == up {
		return false
	}
	if s.logged == nil {
		s.logged = map[portKey]bool{}
	}
	s.logged[k] = up
	return true
}

// discard closes a device that has failed. Its watch ends when the closing closes the
// channel of events.
func (s *Set) discard(d *Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[d.key] != d {
		return // Close closes it
	}
	delete(s.open, d.key)
	for _, p := range d.ports {
		delete(s.logged, portKey{d.key, p.num})
	}
	s.leaving.Go(func() {
		_ = d.rdma.Close()
		<-d.done
	})
}

// Close closes all devices and returns when nothing is reported any more.
func (s *Set) Close() error {
	s.opening.Lock()
	s.mu.Lock()
	s.closed = true
	devs := s.sorted()
	s.open = map[key]*Device{}
	s.mu.Unlock()
	s.opening.Unlock()
	var errs []error
	for _, d := range devs {
		errs = append(errs, d.rdma.Close())
		<-d.done
	}
	s.leaving.Wait()
	return errors.Join(errs...)
}

// whyNone returns why there is no device on netdev. It is not nil.
func (s *Set) whyNone(netdev string) error {
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	var errs []error
	for i, p := range s.cfg.Providers {
		if err := s.listError(i); err != nil {
			errs = append(errs, err)
			continue
		}
		if x, ok := p.(rdmaverbs.Explainer); ok {
			device, err := x.WhyNone(ctx, netdev)
			if err != nil && device != "" {
				err = fmt.Errorf("open %s: %w", device, err)
			}
			if err != nil {
				errs = append(errs, err)
				continue
			}
		}
		errs = append(errs, fmt.Errorf("%s has no device on netdev %s: %w", p.Name(), netdev, rdmaverbs.ErrNoDevice))
	}
	return errors.Join(errs...)
}
