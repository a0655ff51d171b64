// SPDX-License-Identifier: Apache-2.0

package conn

import (
	"smcr/userstack/wire"
)

// urgentInput is the urgent data that the peer sent (RFC 7609, sections 4.7.5 and
// 4.7.6). The byte is kept aside. The stream goes on behind it as soon as the reader
// gets there, whether the program took the byte or not, so that the peer learns at
// once that it may go on.
//
//	message                | data | then
//	-----------------------+------+--------------------------------------------
//	UrgentPresent          | yes  | the byte has arrived; it is kept aside, or
//	                       |      | stays in the stream (SO_OOBINLINE)
//	UrgentPending alone    | any  | the byte is announced
//	all others             | any  | nothing
type urgentInput struct {
	mark    uint64 // position after the urgent byte, 0 if there was none
	value   byte
	kept    bool // value was not taken
	pending bool // the peer has announced another one
	inline  bool // this one stays in the stream
	// nextInline: those that arrive from now on stay in the stream.
	nextInline bool
}

// receive takes the urgent flags of a message that has moved the producer cursor to
// written, by n bytes, of which last is the last one. It reports whether the program
// has to be told.
func (u *urgentInput) receive(f wire.ProducerFlags, written, n uint64, last byte) bool {
	switch {
	case f&wire.ProdUrgentPresent != 0 && n > 0:
		u.mark, u.pending, u.inline = written, false, u.nextInline
		u.kept = !u.inline
		u.value = last
		return true
	case f&(wire.ProdUrgentPending|wire.ProdUrgentPresent) == wire.ProdUrgentPending && !u.pending:
		u.pending = true
		return true
	}
	return false
}

// take returns the urgent byte, and removes it unless peek is set. See [Conn.Urgent]
// for the errors.
func (u *urgentInput) take(peek bool) (byte, error) {
	switch {
	case u.kept:
		u.kept = peek
		return u.value, nil
	case u.pending:
		return 0, ErrUrgentPending
	}
	return 0, ErrNoUrgent
}

// skips reports whether the byte at position read is an urgent byte that is not in
// the stream.
func (u *urgentInput) skips(read uint64) bool {
	return read+1 == u.mark && !u.inline
}

// unread returns how many bytes can be read in one piece from position read: not
// across the urgent mark.
func (u *urgentInput) unread(read, written uint64) int {
	if u.mark > read+1 {
		return int(u.mark - 1 - read)
	}
	return int(written - read)
}

// atMark reports whether a reader at position read is at the urgent mark: before
// the urgent byte if that stays in the stream, at its place otherwise.
func (u *urgentInput) atMark(read uint64) bool {
	switch {
	case u.mark == 0:
		return false
	case u.inline:
		return read+1 == u.mark
	}
	return read == u.mark
}
