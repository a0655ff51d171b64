// SPDX-License-Identifier: Apache-2.0

package service

import (
	"sync"
	"sync/atomic"

	"smcr/userstack/internal/inside"
)

// outer is the TCP connection below an SMC-R connection. The stack closes it when the connection has
// ended for both sides, and the Flow ends then.
type outer struct {
	inside.TCPConn
	reset atomic.Bool
	over  chan struct{}
	once  sync.Once
}

// SetLinger implements inside.TCPConn. The socket resets the connection until the Flow ends in order.
func (o *outer) SetLinger(sec int) error {
	o.reset.Store(sec == 0)
	return nil
}

// Close implements inside.TCPConn.
func (o *outer) Close() error {
	o.once.Do(func() {
		if n, ok := o.TCPConn.(*near); ok {
			_ = n.Close()
		}
		close(o.over)
	})
	return nil
}

// Notifier is for inside.NotifierOf.
func (o *outer) Notifier() inside.Notifier {
	n, _ := o.TCPConn.(inside.Notifier)
	return n
}
