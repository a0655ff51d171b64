// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"

	"smcr/rdmaverbs/softroce"
	"smcr/userstack/engine"
	"smcr/userstack/internal/inside"
	"smcr/userstack/tcpopt"
)

// defaults fills in what the configuration left to the stack: the host's
// network, software RoCE and the eBPF program.
func (s *Stack) defaults() error {
	s.tcpRcv = defaultRecvBuf()
	if s.net == nil {
		n, err := newHostNetwork()
		if err != nil {
			return err
		}
		s.net, s.ownNet = n, n
	}
	if s.cfg.Provider == nil {
		if err := s.softRoCE(); err != nil {
			return err
		}
	}
	if s.option != nil {
		return nil
	}
	if s.cfg.NoOption {
		s.optErr = errors.New("userstack: Config.NoOption is set")
		return nil
	}
	p, err := tcpopt.Attach(tcpopt.Options{Logger: s.log})
	if err != nil {
		// Said once; the stack then trusts AssumeSMC only.
		s.optErr = err
		s.log.Warn("cannot use the TCP option of SMC: only connections to peers of --assume-smc use SMC-R", "err", err, "assumed", s.cfg.AssumeSMC)
		return nil
	}
	s.option, s.ownOpt = marker{p}, true
	return nil
}

// softRoCE makes the stack one on software RoCE, with an engine unless there is to
// be none.
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
	p, err := inThisNetNS(softroce.New(opts...))
	if err == nil && !s.cfg.NoVersion2 {
		err = s.eids.add(DefaultUEID)
	}
	if err != nil {
		if loop != nil {
			err = errors.Join(err, loop.Close())
		}
		return err
	}
	s.cfg.Provider, s.ownNS, s.loop = p, p, loop
	if loop != nil {
		s.cfg.Engines = []*engine.Loop{loop}
	}
	return nil
}

// marker makes tcpopt.Program an optionMarker.
type marker struct{ *tcpopt.Program }

func (m marker) Gate(fd int) (inside.Gate, error) {
	g, err := m.Program.Gate(fd)
	if g == nil || err != nil {
		return nil, err
	}
	return g, nil
}

func (m marker) PeerSMC(fd int) (bool, error) {
	st, err := m.Peer(fd)
	if errors.Is(err, tcpopt.ErrNotMarked) {
		return false, nil // nothing was announced
	}
	if err != nil {
		return false, err
	}
	if st == tcpopt.Unknown {
		return false, errors.New("userstack: the TCP handshake is not complete")
	}
	return st == tcpopt.PeerSMC, nil
}
