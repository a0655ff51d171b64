// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"errors"
	"net"

	"smcr/guard"
	"smcr/userstack/devices"
	"smcr/userstack/driver"
	"smcr/userstack/internal/pathmemory"
	"smcr/userstack/internal/tcptable"
	"smcr/userstack/network"
	"smcr/userstack/rendezvous"
)

// New starts a stack in the network namespace of the calling thread. It opens no RDMA device:
// a device is opened when a connection first needs it.
func New(cfg Config) (*Stack, error) {
	if err := cfg.setDefaults(); err != nil {
		return nil, err
	}
	s := &Stack{
		cfg: cfg, log: cfg.Log, net: cfg.network, pnets: cfg.PNETs,
		opt: tcpOption{marker: cfg.option, assume: cfg.AssumeSMC},
		reg: registry{
			first: rendezvous.NewFirstContacts(), firstEnds: map[rendezvous.Contact]chan struct{}{},
			listeners: map[net.Listener]struct{}{},
		},
		limit:     handshakeLimit{underWay: rendezvous.NewHandshakeLimit(), known: rendezvous.NewKnown()},
		undecided: undecided{places: rendezvous.NewUndecidedLimit()},
		paths:     pathTable{known: pathmemory.New()},
	}
	s.guard = guard.Guard{Log: s.log, Count: s.stats.Panic}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if err := s.defaults(); err != nil {
		s.cancel()
		return nil, err
	}
	s.devices = devices.New(devices.Config{
		Providers: s.cfg.Providers, Network: s.net, PNETs: s.pnets, NetDevs: s.cfg.NetDevs, Changed: s.portChanged, Guard: &s.guard, Log: s.log,
	})
	s.driver = driver.New(driver.Config{
		Network: s.net, Devices: s.devices, Stats: &s.stats, Guard: &s.guard, Log: s.log, Trace: &s.trace,
		Engines: s.cfg.Engines, Loop: s.loop,
		RecvBuf: s.cfg.RecvBuf, SendBuf: s.cfg.SendBuf, SendChunk: s.cfg.tune.sendChunk, EyeCatcher: s.cfg.EyeCatcher,
		GroupIdle: s.cfg.GroupIdle, StallTime: s.cfg.StallTime, Limits: s.cfg.Limits.forDriver(), Random: s.cfg.random, TuneTimers: s.cfg.tune.timers, PathDied: s.pathDied,
	})
	var diag network.SockDiag
	if s.own.net != nil {
		diag = s.own.net.SockDiag()
	}
	s.tcpSockets = tcptable.New(&s.guard, diag.Each)
	return s, nil
}

// Close resets all connections, ends all link groups with DELETE LINK, and frees everything.
// It waits a limited time for the answers of peers. If ReadFrom or WriteTo of a connection is
// in a reader or writer of the program, the buffer is freed when this call returns.
func (s *Stack) Close() error {
	s.reg.mu.Lock()
	if s.reg.closed {
		s.reg.mu.Unlock()
		return ErrStackClosed
	}
	s.reg.closed = true
	s.reg.mu.Unlock()
	s.cancel()
	var errs []error
	if s.own.opt { // nobody would serve connections that are announced from now on
		errs = append(errs, s.opt.marker.Close())
	}
	s.driver.Terminate()
	s.reg.wg.Wait() // rendezvous may have objects on devices, too
	if err := s.driver.Close(); err != nil {
		s.log.Warn("not all memory is free", "err", err)
	}
	errs = append(errs, s.devices.Close())
	if s.loop != nil {
		errs = append(errs, s.loop.Close())
	}
	s.tcpSockets.Close()
	if s.own.net != nil {
		s.own.net.Close()
	}
	if s.own.ns != nil {
		errs = append(errs, s.own.ns.Close())
	}
	return errors.Join(errs...)
}

// portChanged tells the link groups whether a port is active.
func (s *Stack) portChanged(p *devices.Port, up bool) { s.driver.PortChanged(p, up) }
