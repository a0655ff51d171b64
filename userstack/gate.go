// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"syscall"

	"smcr/userstack/internal/inside"
	"smcr/userstack/network"
	"smcr/userstack/tcpopt"
	"smcr/userstack/wire"
)

// A program has the TCP socket on which the stack speaks CLC in the name of the host.
// The gate of the socket keeps the program from sending (package tcpopt):
//
//	the stack                         | the gate
//	----------------------------------+---------------------------------------------
//	sends PROPOSAL, ACCEPT or CONFIRM | lets it pass, and nothing else
//	sends DECLINE                     | opens behind it
//	reads DECLINE                     | opens, if nobody else has read
//	finds data instead of a PROPOSAL  | opens, if these are the first bytes
//	has moved the connection to SMC-R | stays shut
//	gives up                          | stays shut

// gateOf returns the gate of a connection. A connection of the Go API has none:
// nobody else has its socket.
func (s *Stack) gateOf(ctx context.Context, tcp TCPConn) (network.Gate, error) {
	if _, own := tcp.(*net.TCPConn); own || s.option == nil {
		return nil, nil
	}
	sc, ok := tcp.(syscall.Conn)
	if !ok {
		return nil, nil
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("userstack: %w", err)
	}
	var g network.Gate
	if cerr := rc.Control(func(fd uintptr) { g, err = s.option.Gate(int(fd)) }); cerr != nil || err != nil {
		return nil, fmt.Errorf("userstack: %w", errors.Join(cerr, err))
	}
	if g == nil && !s.trusts(inside.OwnerFrom(ctx)) && !s.isHere(addrPort(tcp.RemoteAddr()).Addr()) {
		return nil, fmt.Errorf("userstack: %w", tcpopt.ErrNoGate)
	}
	return g, nil
}

// send writes a message to the TCP connection.
func (h *clc) send(b []byte, last bool) error {
	if h.gate == nil {
		_, err := h.tcp.Write(b)
		return err
	}
	rc, err := h.tcp.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	// Not Control: the deadline counts.
	if werr := rc.Write(func(fd uintptr) bool { err = h.gate.Send(int(fd), b, last); return true }); werr != nil {
		return werr
	}
	return err
}

// declined opens the gate if the rendezvous has ended with a DECLINE of the peer, and
// returns how it has ended.
func (h *clc) declined(end error) error {
	d, ok := errors.AsType[*DeclineError](end)
	if h.gate == nil || !ok || !d.Remote {
		return end
	}
	return onSocket(h.tcp.(syscall.Conn), end, func(fd int) error { return h.gate.Open(fd, h.took) })
}

// openToData opens the gate of a connection whose peer sends data.
func (s *Stack) openToData(ctx context.Context, tcp inside.TCPConn) error {
	g, err := s.gateOf(ctx, tcp)
	if g == nil || err != nil {
		return err
	}
	return onSocket(tcp, nil, func(fd int) error { return g.OpenToData(fd, isData) })
}

// isData tells data from the beginning of a CLC message.
func isData(first []byte) bool {
	if len(first) >= wire.HeaderLen {
		_, err := wire.ParseHeader(first[:wire.HeaderLen])
		return err != nil
	}
	var eye [4]byte
	binary.BigEndian.PutUint32(eye[:], wire.EyecatcherSMCR)
	n := min(len(first), len(eye)-1) // that of SMC-D differs in the last byte
	return n == 0 || string(first[:n]) != string(eye[:n])
}

// onSocket returns the error of f, which gets the socket of tcp, or otherwise end.
func onSocket(tcp syscall.Conn, end error, f func(fd int) error) error {
	rc, err := tcp.SyscallConn()
	if err != nil {
		return fmt.Errorf("userstack: %w", err)
	}
	if cerr := rc.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil || err != nil {
		return fmt.Errorf("userstack: %w", errors.Join(cerr, err))
	}
	return end
}
