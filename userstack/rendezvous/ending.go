// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"smcr/userstack/wire"
)

// ErrProtocol means that the peer sent something else than the CLC messages that may
// come. TCP cannot be used either: what follows cannot be told from data (RFC 7609,
// appendix C.6).
var ErrProtocol = errors.New("protocol error")

// ErrTooLate means that the rendezvous has failed when the peer may use SMC-R already.
// TCP cannot be used either: DECLINE would reach the peer as data (RFC 7609, appendices
// C.1 and C.3).
var ErrTooLate = errors.New("too late to decline SMC-R")

// ErrNoAnswer means that a client has got no answer of CLC to PROPOSAL: something else, the
// end of the connection, or nothing. The server does not speak CLC, although its SYN-ACK
// seemed to say so, and has read PROPOSAL as data.
var ErrNoAnswer = errors.New("the peer announced SMC, and does not answer PROPOSAL")

// failReading ends the rendezvous because of what came from TCP, or did not come.
func (m *Machine) failReading(err error) {
	if m.client != nil && m.state == AwaitAccept {
		err = fmt.Errorf("%w: %w", ErrNoAnswer, err)
	}
	m.fail(err)
}

// anyState says what events do in the states whose table has nothing for them.
var anyState = fallback{
	EvProposal:   (*Machine).unexpected,
	EvAccept:     (*Machine).unexpected,
	EvConfirm:    (*Machine).unexpected,
	EvDecline:    (*Machine).unexpected,
	EvGarbage:    (*Machine).notCLC,
	EvEOF:        (*Machine).tcpEnded,
	EvReadFailed: (*Machine).tcpEnded,
	EvSendFailed: (*Machine).sendFailed,
	EvDeadline:   (*Machine).timeout,
	EvCanceled:   (*Machine).canceled,
	EvClosed:     (*Machine).canceled,
}

// unexpected is the end after a message that may not come.
func (m *Machine) unexpected(_ time.Time, ev Event) {
	m.failReading(fmt.Errorf("%w: unexpected %s in state %s", ErrProtocol, ev.kind(), m.state))
}

// notCLC is the end after something that is no CLC message.
func (m *Machine) notCLC(_ time.Time, ev Event) {
	m.failReading(fmt.Errorf("%w: %w", ErrProtocol, ev.(garbage).err))
}

// tcpEnded is the end after that of the TCP connection.
func (m *Machine) tcpEnded(_ time.Time, ev Event) {
	err := io.EOF
	if f, ok := ev.(ReadFailed); ok {
		err = f.Err
	}
	m.failReading(fmt.Errorf("read CLC header: %w", err))
}

func (m *Machine) sendFailed(_ time.Time, ev Event) { m.fail(ev.(SendFailed).Err) }

// timeout is the end of a wait for a message. The error is os.ErrDeadlineExceeded.
func (m *Machine) timeout(now time.Time, _ Event) {
	if !m.late {
		m.late, m.deadline = true, now.Add(LateGrace)
		return
	}
	err := fmt.Errorf("read %s: %w", m.partName(), os.ErrDeadlineExceeded)
	if len(m.part) > 0 {
		err = fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	m.failReading(err)
}

// canceled is the end because nobody wants the connection, or the stack ends. Nothing is
// sent any more. The error is the cause that the driver gave.
func (m *Machine) canceled(_ time.Time, ev Event) { m.fail(cause(ev)) }

func cause(ev Event) error {
	if c, ok := ev.(Canceled); ok {
		return c.Cause
	}
	return ev.(Closed).Cause
}

// broken is the end because the TCP connection cannot be used.
func (m *Machine) broken(_ time.Time, ev Event) {
	f := ev.(Failed)
	m.fail(f.err())
}

// peerDeclined is the end after DECLINE of the peer.
func (m *Machine) peerDeclined(_ time.Time, ev Event) {
	m.stayTCP(&Refusal{Remote: true, Code: ev.(message).m.(wire.Decline).Diagnosis})
}
