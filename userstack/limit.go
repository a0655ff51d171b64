// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"fmt"
	"sync/atomic"

	"smcr/smc"
)

// hsLimit is the number of rendezvous under way above which a stack with
// handshake limitation declines further ones.
const hsLimit = 32

// handshakeLimit is the part of a stack that counts the rendezvous of servers and limits
// them. It has no lock.
type handshakeLimit struct {
	on       atomic.Bool
	underWay atomic.Int32
}

// add counts a rendezvous; remove ends that, also after an error. The error is a
// *DeclineError: the limit is on, and too many are under way.
func (l *handshakeLimit) add() error {
	if n := l.underWay.Add(1); n > hsLimit && l.on.Load() {
		return &DeclineError{Code: smc.DiagConfig, Err: fmt.Errorf("%d pending handshakes, above the handshake limit", n)}
	}
	return nil
}

func (l *handshakeLimit) remove() { l.underWay.Add(-1) }
