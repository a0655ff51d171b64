// SPDX-License-Identifier: Apache-2.0

package network

import (
	"errors"
	"os"

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
	// GateConnect and GateListen do the same for sockets that other processes have,
	// too. These processes cannot send before the stack has opened the gate. The
	// error is tcpopt.ErrNoGate if the kernel cannot do that. A listening socket takes
	// the share of its owner: of a user, or 0 for root and the user of the stack.
	GateConnect(fd int) error
	GateListen(fd int, owner uint32) error
	// UnmarkConnect takes back MarkConnect and GateConnect if no connection was
	// established.
	UnmarkConnect(fd int) error
	// Gate returns the gate of a connected or accepted socket, or nil if it has
	// none.
	Gate(fd int) (Gate, error)
	// PeerSMC reports whether the peer of a connected or accepted socket sent the
	// option.
	PeerSMC(fd int) (bool, error)
	// Close ends the marking of sockets.
	Close() error
}

// A Gate lets the stack send CLC messages on a socket that other processes have,
// too, and keeps these processes from sending until it is open. It is for one
// goroutine at a time. [tcpopt.Gate] implements it.
type Gate interface {
	// Send sends the whole of msg. With last the gate opens behind msg.
	Send(fd int, msg []byte, last bool) error
	// Open opens the gate after the stack has read the given number of bytes from
	// the socket. It fails if another process has read from the socket, too.
	Open(fd, read int) error
	// OpenHere opens the gate of a connection within the network namespace, on which
	// nobody speaks CLC. The error is tcpopt.ErrNotHere if it was not seen to be one.
	OpenHere(fd int) error
	// OpenToData opens the gate if isData says so of the first bytes that the peer
	// has sent. None of them may have been read before.
	OpenToData(fd int, isData func(first []byte) bool) error
}

// A ListenerKeeper is an OptionMarker that knows what becomes of the listening sockets of
// GateListen. That of NewOptionMarker is one. See the methods of [tcpopt.Program].
type ListenerKeeper interface {
	Listens(fd int) (bool, error)
	Silence(a LocalAddress) error
	Unsilence(a LocalAddress) error
	Silent() ([]LocalAddress, error)
	Announced() ([]Announced, error)
	Taken(cookie uint64) (bool, error)
}

// LocalAddress is a TCP address of a network namespace.
type LocalAddress = tcpopt.Address

// Announced is a connection whose peer was told of SMC.
type Announced = tcpopt.Announced

// A CopyDetector is an OptionMarker that notices when something copies the options of the
// SYN into the SYN-ACK. That of NewOptionMarker is one.
type CopyDetector interface {
	// Copied reports whether the SYN-ACK of a connected socket had the option of SMC only
	// because the SYN had it.
	Copied(fd int) bool
}

var (
	_ ListenerKeeper = marker{}
	_ CopyDetector   = marker{}
)

// A Sharer is an OptionMarker that another process can adopt. That of NewOptionMarker is
// one.
type Sharer interface {
	// Share returns the files for tcpopt.Adopt, which the caller must close.
	Share() ([]*os.File, error)
}

var _ Sharer = marker{}

// NewOptionMarker makes an OptionMarker of the eBPF program p.
func NewOptionMarker(p *tcpopt.Program) OptionMarker { return marker{p} }

// marker implements OptionMarker.
type marker struct{ *tcpopt.Program }

// Gate implements OptionMarker.
func (m marker) Gate(fd int) (Gate, error) {
	g, err := m.Program.Gate(fd)
	if g == nil || err != nil {
		return nil, err
	}
	return g, nil
}

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
