// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"fmt"

	"smcr/smc"
)

// A Refusal is a reason not to use SMC-R. It is also an error.
type Refusal struct {
	// Remote says that the peer declined.
	Remote bool
	// Code is the reason, as DECLINE has it.
	Code smc.Diagnosis
	// Err is the local cause, or nil.
	Err error
}

// Error implements error.
func (r *Refusal) Error() string {
	if r.Err == nil {
		return r.Code.String()
	}
	return fmt.Sprintf("%s: %v", r.Code, r.Err)
}

// Unwrap returns the local cause.
func (r *Refusal) Unwrap() error { return r.Err }

func refuse(code smc.Diagnosis, format string, args ...any) *Refusal {
	return &Refusal{Code: code, Err: fmt.Errorf(format, args...)}
}

// internal is the refusal for an error that has no diagnosis of its own.
func internal(err error) Refusal { return Refusal{Code: smc.DiagInternal, Err: err} }

// Failure says why the host cannot do something.
type Failure struct {
	// Why is what DECLINE tells the peer, and the cause.
	Why Refusal
	// NoFallback says that a first contact has failed too late to use TCP instead: the
	// peer may have sent data over SMC-R (RFC 7609, appendix C.2).
	NoFallback bool
	// NotOwner says that what the peer named belongs to a connection of another host.
	NotOwner bool
}

// err returns the cause in full.
func (f *Failure) err() error {
	if f.Why.Err == nil {
		return &f.Why
	}
	return f.Why.Err
}
