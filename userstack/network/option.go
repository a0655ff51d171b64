// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"net/netip"
	"time"

	"smcr/quota"
	"smcr/userstack/tcpopt"
)

// An OptionMarker writes the SMC option into the TCP handshakes of marked sockets,
// and reports whether the peer sent it. [NewOptionMarker] makes one for the kernel.
// A fd is the descriptor of a TCP socket.
type OptionMarker interface {
	// MarkConnect has the SYN of a socket announce SMC.
	MarkConnect(fd int) error
	// MarkListen has the SYN-ACKs of a listening socket announce SMC to the peers
	// that do so.
	MarkListen(fd int) error
	// PeerSMC reports whether the peer of a connected or accepted socket sent the
	// option.
	PeerSMC(fd int) (bool, error)
	// Close ends the marking of sockets.
	Close() error
}

// A CopyDetector is an OptionMarker that notices when something copies the options of the
// SYN into the SYN-ACK. That of NewOptionMarker is one.
type CopyDetector interface {
	// Copied reports whether the SYN-ACK of a connected socket had the option of SMC only
	// because the SYN had it.
	Copied(fd int) bool
}

// A Holder is an OptionMarker that can have listeners announce nothing to some hosts for a time. That of NewOptionMarker is one.
type Holder interface {
	// Hold does so for the hosts of an origin, but for those behind a router that are known; or, for the zero Origin, for all that are not known.
	// The known hosts are as quota.Origin.HostOf has them.
	Hold(o quota.Origin, d time.Duration, known []netip.Addr) error
}

var (
	_ CopyDetector = marker{}
	_ Holder       = marker{}
)

// NewOptionMarker makes an OptionMarker of the eBPF program p.
func NewOptionMarker(p *tcpopt.Program) OptionMarker { return marker{p} }

// marker implements OptionMarker.
type marker struct{ *tcpopt.Program }

// Copied implements CopyDetector.
func (m marker) Copied(fd int) bool {
	st, err := m.Peer(fd)
	return err == nil && st == tcpopt.PeerCopies
}

// PeerSMC implements OptionMarker.
func (m marker) PeerSMC(fd int) (bool, error) {
	st, err := m.Peer(fd)
	if errors.Is(err, tcpopt.ErrNotMarked) {
		return false, nil // nothing was announced
	}
	if err != nil {
		return false, err
	}
	if st == tcpopt.Unknown {
		return false, errors.New("network: the TCP handshake is not complete")
	}
	return st == tcpopt.PeerSMC, nil
}
