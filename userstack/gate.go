// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"encoding/binary"
	"errors"
	"syscall"

	"smcr/userstack/wire"
)

// A program has the TCP socket on which the stack sends CLC messages in the name of the host.
// The gate of the socket prevents that the program sends (package tcpopt):
//
//	the stack                         | the gate
//	----------------------------------+---------------------------------------------
//	sends PROPOSAL, ACCEPT or CONFIRM | lets it pass, and nothing else
//	sends DECLINE                     | opens behind it
//	reads DECLINE                     | opens, if nobody else has read
//	finds data instead of a PROPOSAL  | opens, if these are the first bytes
//	has moved the connection to SMC-R | stays shut
//	gives up                          | stays shut

// write writes a message to the TCP connection. last means that no other message follows.
func (h *handshake) write(b []byte, last bool) error {
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

// openDeclined opens the gate if the rendezvous has ended with a DECLINE of the peer.
func (h *handshake) openDeclined(end *DeclineError) error {
	if h.gate == nil || !end.Remote {
		return nil
	}
	return onSocket(h.tcp.(syscall.Conn), func(fd int) error { return h.gate.Open(fd, h.reader.took) })
}

// openToData opens the gate of a connection whose peer sends data.
func (h *handshake) openToData() error {
	g, err := h.s.opt.gateOf(h.ctx, h.tcp)
	if g == nil || err != nil {
		return err
	}
	return onSocket(h.tcp.(syscall.Conn), func(fd int) error { return g.OpenToData(fd, isData) })
}

// isData reports whether first is the beginning of data and not of a CLC message.
func isData(first []byte) bool {
	if len(first) >= wire.HeaderLen {
		_, err := wire.ParseHeader(first[:wire.HeaderLen])
		return err != nil
	}
	var eye [4]byte
	binary.BigEndian.PutUint32(eye[:], wire.EyecatcherSMCR)
	n := min(len(first), len(eye)-1) // that of SMC-D has another last byte
	return n == 0 || string(first[:n]) != string(eye[:n])
}

// onSocket returns the error of f, which gets the socket of tcp.
func onSocket(tcp syscall.Conn, f func(fd int) error) error {
	rc, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	cerr := rc.Control(func(fd uintptr) { err = f(int(fd)) })
	return errors.Join(cerr, err)
}
