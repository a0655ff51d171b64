// SPDX-License-Identifier: Apache-2.0

package adversary

import (
	"fmt"
	"io"
	"net"
	"time"

	"smcr/smc"
	"smcr/userstack/wire"
)

// Dialog is the exchange of CLC messages on one TCP connection. It is for one goroutine at
// a time.
type Dialog struct {
	Conn *net.TCPConn
}

// Close closes the TCP connection, without a wait for data that was not sent.
func (d *Dialog) Close() error {
	_ = d.Conn.SetLinger(0)
	return d.Conn.Close()
}

// Send sends a message.
func (d *Dialog) Send(m wire.CLC) error {
	b, err := m.AppendBinary(nil)
	if err == nil {
		_, err = d.Conn.Write(b)
	}
	if err != nil {
		return fmt.Errorf("adversary: send %s: %w", m.CLCType(), err)
	}
	return nil
}

// Receive receives a message, and waits for it at most for the given time. The error is
// io.EOF or a reset if the victim has closed the connection, os.ErrDeadlineExceeded after
// that time, and one of package wire for something else than a message.
func (d *Dialog) Receive(wait time.Duration) (wire.CLC, error) {
	if err := d.Conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return nil, fmt.Errorf("adversary: %w", err)
	}
	b := make([]byte, wire.HeaderLen)
	if _, err := io.ReadFull(d.Conn, b); err != nil {
		return nil, fmt.Errorf("adversary: receive: %w", err)
	}
	h, err := wire.ParseHeader(b)
	if err != nil {
		return nil, err
	}
	b = append(b, make([]byte, h.Length-len(b))...)
	if _, err := io.ReadFull(d.Conn, b[wire.HeaderLen:]); err != nil {
		return nil, fmt.Errorf("adversary: receive %s: %w", h.Type, err)
	}
	return wire.ParseCLC(b)
}

// ReceiveAs receives a message of one type.
func ReceiveAs[T wire.CLC](d *Dialog, wait time.Duration) (T, error) {
	m, err := d.Receive(wait)
	if err != nil {
		return *new(T), err
	}
	t, ok := m.(T)
	if !ok {
		return t, fmt.Errorf("adversary: received %+v, want %s", m, t.CLCType())
	}
	return t, nil
}

// Proposal returns the PROPOSAL that a host with this identity sends: for version 1, and
// with an enterprise ID for version 2 as well.
func (i *Identity) Proposal(eids ...wire.EID) (wire.Proposal, error) {
	p := wire.Proposal{PeerID: i.PeerID, GID: i.LinkGID, MAC: i.MAC, IPv4: i.Subnet, Growth: make([]byte, wire.ProposalGrowthLinux)}
	if len(eids) == 0 {
		return p, nil
	}
	return p.WithOffer(wire.Offer{
		Mode: wire.ModeR, EIDs: eids, GID: i.GID, Release: wire.ReleaseV21, MaxConns: 255, MaxLinks: 1,
	})
}

// Endpoint returns what ACCEPT or CONFIRM of version 2 says of one end of a connection.
func (i *Identity) Endpoint(q *QP, rmb smc.RToken, element uint8, token uint32) wire.Endpoint {
	return wire.Endpoint{
		PeerID: i.PeerID, GID: i.GID, MAC: i.MAC, QPN: smc.QPN(q.Num), PSN: smc.PSN(q.PSN()), MTU: mtu1024,
		RMB: rmb, RMBEIndex: element, AlertToken: token, RMBESize: elementSize,
	}
}

// What the attacker says of its own side.
const (
	mtu1024     smc.MTU      = 3 // 1024 bytes
	elementSize smc.SizeCode = 1 // 32 KiB
)
