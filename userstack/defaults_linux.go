// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"

	"smcr/rdmaverbs/softroce"
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
		p, err := inThisNetNS(softroce.New(softroce.WithLogger(s.log)))
		if err != nil {
			return err
		}
		s.cfg.Provider, s.ownNS = p, p
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

// marker makes tcpopt.Program an optionMarker.
type marker struct{ *tcpopt.Program }

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
