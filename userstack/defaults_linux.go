// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"

	"smcr/rdmaverbs"
	"smcr/rdmaverbs/softroce"
	"smcr/userstack/devices"
	"smcr/userstack/engine"
	"smcr/userstack/network"
	"smcr/userstack/tcpopt"
)

// defaults sets what the configuration leaves open: the network of the host, software RoCE
// and the eBPF program.
func (s *Stack) defaults() error {
	if s.net == nil {
		n, err := network.Open()
		if err != nil {
			return err
		}
		s.net, s.own.net = n, n
	}
	if len(s.cfg.Providers) == 0 {
		if err := s.softRoCE(); err != nil {
			return err
		}
	}
	if s.opt.marker != nil {
		return nil
	}
	if s.cfg.NoOption {
		s.opt.err = errors.New("userstack: Config.NoOption is set")
		return nil
	}
	p, err := tcpopt.Attach(tcpopt.Options{CgroupPath: s.cfg.Cgroup, Logger: s.log})
	if err != nil {
		// This is logged once. From then on, the stack uses SMC-R only with AssumeSMC.
		s.opt.err = err
		s.log.Warn("cannot use the TCP option of SMC: only connections to peers of Config.AssumeSMC use SMC-R", "err", err, "assumed", s.cfg.AssumeSMC)
		return nil
	}
	s.opt.marker, s.own.opt = network.NewOptionMarker(p), true
	return nil
}

// softRoCE makes the stack use software RoCE, with an engine unless NoEngine is set.
func (s *Stack) softRoCE() error {
	opts := []softroce.Option{softroce.WithLogger(s.log)}
	var loop *engine.Loop
	if !s.cfg.NoEngine {
		spin := s.cfg.Spin
		if spin == 0 {
			spin = engine.DefaultSpin
		}
		var err error
		if loop, err = engine.New(max(0, spin)); err != nil {
			return err
		}
		opts = append(opts, softroce.WithPoller(loop), softroce.WithWriteOnly())
	}
	ns, err := network.OpenNetNS()
	if err == nil && !s.cfg.NoVersion2 {
		err = s.eids.add(DefaultUEID)
	}
	if err != nil {
		if ns != nil {
			err = errors.Join(err, ns.Close())
		}
		if loop != nil {
			err = errors.Join(err, loop.Close())
		}
		return err
	}
	s.cfg.Providers = []rdmaverbs.Provider{devices.InNetNS(softroce.New(opts...), ns)}
	s.own.ns, s.loop = ns, loop
	if loop != nil {
		s.cfg.Engines = []*engine.Loop{loop}
	}
	return nil
}
