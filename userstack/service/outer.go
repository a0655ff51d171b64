// SPDX-License-Identifier: Apache-2.0

package service

import (
	"sync"
	"sync/atomic"

	"smcr/smc"
	"smcr/userstack/divert"
	"smcr/userstack/internal/inside"
	"smcr/userstack/network"
)

var _ inside.Held = (*outer)(nil)

// outer is the TCP connection below an SMC-R connection. The stack closes it when the connection has
// ended for both sides, and the Flow ends then.
type outer struct {
	inside.TCPConn
	b     *boundary
	f     *divert.Flow
	noted bool // as one that is being decided; for the rendezvous
	reset atomic.Bool

	mu     sync.Mutex
	closed bool
	then   func() // called when it is closed; may be nil
}

// SetLinger implements inside.TCPConn. The socket resets the connection until the Flow ends in order.
func (o *outer) SetLinger(sec int) error {
	o.reset.Store(sec == 0)
	return nil
}

// Close implements inside.TCPConn.
func (o *outer) Close() error {
	if n, ok := o.TCPConn.(*near); ok {
		_ = n.Close()
	}
	o.mu.Lock()
	then := o.then
	o.closed, o.then = true, nil
	o.mu.Unlock()
	if then != nil {
		then()
	}
	return nil
}

// whenClosed has f called once the stack has closed the connection, which may be at once. f must not wait.
func (o *outer) whenClosed(f func()) {
	o.mu.Lock()
	closed := o.closed
	if !closed {
		o.then = f
	}
	o.mu.Unlock()
	if closed {
		f()
	}
}

// RecvBuf returns the receive buffer that the handshake goes by. It is that of all sockets of the stack's namespace, so one is asked.
func (o *outer) RecvBuf() int {
	n := int(o.b.recvBuf.Load())
	if n == 0 {
		n = network.RecvBuf(o.TCPConn)
		o.b.recvBuf.Store(int64(n))
	}
	return n
}

// TryWrite is for the rendezvous. What a server writes first is its answer.
func (o *outer) TryWrite(b []byte) (int, error) {
	if o.f.Role == smc.Server {
		o.note()
	}
	if n, ok := o.TCPConn.(*near); ok {
		return n.TryWrite(b)
	}
	return 0, nil
}

// LetGo implements inside.Held.
func (o *outer) LetGo() (has bool, err error) {
	o.note()
	return o.f.LetGo()
}

// note notes the connection as one that is being decided.
func (o *outer) note() {
	if !o.noted {
		o.noted = true
		o.b.deciding.begin(o.f)
	}
}

// Notifier is for inside.NotifierOf.
func (o *outer) Notifier() inside.Notifier {
	n, _ := o.TCPConn.(inside.Notifier)
	return n
}
