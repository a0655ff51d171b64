// SPDX-License-Identifier: Apache-2.0

package conntest

import (
	"fmt"

	"smcr/userstack/conn"
)

// CheckPair verifies that the two ends of one connection agree: neither end has received
// a byte that was not written, or was told that the other end has read a byte that it has
// not read. This holds between any two events, unless one of the hosts sends wrong
// messages. An end that is not established, or has released its memory, is not checked.
// The error is a [conn.ErrInvariant].
func CheckPair(a, b *conn.Conn) error {
	for _, ends := range [2][2]*conn.Conn{{a, b}, {b, a}} {
		from, to := ends[0].Positions(), ends[1].Positions()
		switch {
		case !from.Live || !to.Live:
		case to.Received > from.Announced:
			return fmt.Errorf("%w: connection %#x has received %d bytes, %#x wrote %d", conn.ErrInvariant, ends[1].Token(), to.Received, ends[0].Token(), from.Announced)
		case from.PeerRead > to.Read:
			return fmt.Errorf("%w: connection %#x holds %d bytes for read, %#x read %d", conn.ErrInvariant, ends[0].Token(), from.PeerRead, ends[1].Token(), to.Read)
		}
	}
	return nil
}
