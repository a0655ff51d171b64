// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"log/slog"
	"os"

	"smcr/userstack"
	"smcr/userstack/internal/inside"
	"smcr/userstack/network"
	"smcr/userstack/tcpopt"
)

// ShareVersion is the version of what Share returns.
const ShareVersion = tcpopt.ShareVersion

// Share returns what another process needs to announce SMC on the same sockets, for
// [Adopt]. There are no files if this stack cannot announce SMC. The caller must close the
// files.
func (p *Programs) Share() ([]*os.File, error) {
	if s, ok := p.in.Option().(network.Sharer); ok {
		return s.Share()
	}
	return nil, nil
}

// Adopt makes the stack of cfg announce SMC with what another process shares, so that all
// sockets that the other one has marked stay marked. It owns the files. Errors: see
// tcpopt.Adopt.
func Adopt(cfg *userstack.Config, files []*os.File, log *slog.Logger) error {
	p, err := tcpopt.Adopt(files, tcpopt.Options{CgroupPath: cfg.Cgroup, Logger: log})
	if err != nil {
		return err
	}
	inside.SetHost(cfg, inside.Host{Option: network.NewOptionMarker(p)})
	return nil
}
