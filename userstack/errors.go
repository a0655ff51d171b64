// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"smcr/rdmaverbs"
	"smcr/smc"
	"smcr/userstack/devices"
	"smcr/userstack/driver"
	"smcr/userstack/linkgroup"
	"smcr/userstack/network"
)

// ErrNotOnLink means that SMC-R does not reach an address: it is an address of this host,
// there is no route to it, or it is behind a router and the stack cannot use version 2 of SMC
// with it.
var ErrNotOnLink = network.ErrNotOnLink

// ErrNoDevice means that no RoCE device serves the network of a connection.
var ErrNoDevice = devices.ErrNoDevice

// ErrStackClosed is returned by the methods of a closed Stack. It is also
// net.ErrClosed to errors.Is.
var ErrStackClosed = driver.ErrClosed

// The most frequent reasons why a connection stays TCP: values of Code of a [DeclineError].
// The Diag constants of package smc are all reasons.
const (
	ReasonPeerNoSMC = smc.DiagPeerNoSMC // the peer did not announce SMC in the TCP handshake
	ReasonNoDevice  = smc.DiagNoSMCRDev // no RoCE device serves the network of the connection
	ReasonNoRoute   = smc.DiagNoRoute   // SMC-R does not reach the peer: see [ErrNotOnLink]
)

// ErrNoOption means that SMC cannot be announced to a peer: the TCP option is not permitted
// here (see [Stack.OptionError]), and the peer is not in Config.AssumeSMC.
var ErrNoOption = errors.New("userstack: the TCP option of SMC is not permitted here, and Config.AssumeSMC does not list the peer")

// DeclineError means that a connection does not use SMC-R, and contains the reason. After
// [Stack.Client] and [Stack.Server], the TCP connection is intact and carries the data. If a
// [Dialer] requires SMC-R, the connection is closed.
type DeclineError struct {
	// Remote means that the peer declined. Code is then the reason that the peer gave.
	Remote bool
	// Code is the reason, with the numbers of Linux: ReasonPeerNoSMC, for example, or another
	// Diag constant of package smc. Its method Text returns it in words.
	Code smc.Diagnosis
	// Err is the local cause, or nil. errors.Is finds ErrNotOnLink, ErrNoDevice and
	// ErrNoOption in it.
	Err error

	uncounted bool // by Client and Server
}

func (e *DeclineError) Error() string {
	who := "declined"
	if e.Remote {
		who = "peer declined"
	}
	if e.Err != nil {
		return fmt.Sprintf("userstack: %s SMC-R: %s: %v", who, e.Code, e.Err)
	}
	return fmt.Sprintf("userstack: %s SMC-R: %s", who, e.Code)
}

func (e *DeclineError) Unwrap() error { return e.Err }

// declineFor returns the diagnosis for a local failure. The failure of a link group may have
// come from a DECLINE of the peer on another connection.
func declineFor(err error) *DeclineError {
	var d *DeclineError
	if errors.As(err, &d) && !d.Remote {
		return d
	}
	code := smc.DiagInternal
	var failed *rdmaverbs.CompletionError
	var limit *driver.LimitError
	switch {
	case silentPath(err):
		code = smc.DiagNoPath
	case errors.As(err, &failed):
		// The link failed before it was confirmed. The kernel reports this as a missing
		// answer to CONFIRM LINK.
		code = smc.DiagTimeoutConfLink
	case errors.Is(err, ErrNoDevice), errors.Is(err, linkgroup.ErrNoDevice):
		code = smc.DiagNoSMCRDev
	case errors.Is(err, linkgroup.ErrTimeout):
		code = smc.DiagTimeoutConfLink
	case errors.Is(err, linkgroup.ErrNoLink), errors.Is(err, linkgroup.ErrNoSign), errors.Is(err, linkgroup.ErrGroupDead), errors.Is(err, linkgroup.ErrFull):
		code = smc.DiagNoActiveLink
	case errors.Is(err, linkgroup.ErrUnknownRKey), errors.Is(err, linkgroup.ErrInvalidParams):
		code = smc.DiagRToken
	case errors.Is(err, syscall.ENOMEM), errors.As(err, &limit):
		code = smc.DiagMem
	}
	return &DeclineError{Code: code, Err: err}
}

// errRouted means that version 1 does not reach a peer.
func errRouted(remote netip.Addr) error {
	return fmt.Errorf("%w: %s is behind a router, which requires SMC version 2 and an enterprise ID", ErrNotOnLink, remote)
}
