// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"context"
	"sync"
	"time"
)

// tcpWrites writes to a TCP connection. Writes that wait end when one of two contexts ends.
type tcpWrites struct {
	tcp  TCPConn
	ends [2]context.Context
	stop [2]func() bool // nil before a write has waited

	mu      sync.Mutex
	writing bool
	cut     bool
}

// tryWriter is a TCP connection that can be written to without waiting. n is how much was written, with an error as well.
type tryWriter interface {
	TryWrite(b []byte) (n int, err error)
}

// try writes as much of b as there is room for, if tcp can do so without waiting, and returns the rest. A message mostly has room at once:
// nothing that ends a wait is needed then.
func (w *tcpWrites) try(b []byte) (rest []byte, err error) {
	c, ok := w.tcp.(tryWriter)
	if !ok {
		return b, nil
	}
	n, err := c.TryWrite(b)
	return b[n:], err
}

// send writes b, until the deadline at most.
func (w *tcpWrites) send(b []byte, deadline time.Time) error {
	b, err := w.try(b)
	if err != nil || len(b) == 0 {
		return err
	}
	w.begin(deadline)
	defer w.finish()
	_, err = w.tcp.Write(b)
	return err
}

// close ends the watch of the contexts.
func (w *tcpWrites) close() {
	for _, stop := range w.stop {
		if stop != nil {
			stop()
		}
	}
}

// end ends the writes, because a context has ended.
func (w *tcpWrites) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut = true; w.writing {
		_ = w.tcp.SetWriteDeadline(longAgo)
	}
}

// begin begins a write that ends at the deadline.
func (w *tcpWrites) begin(deadline time.Time) {
	if w.stop[0] == nil {
		for i, ctx := range w.ends {
			w.stop[i] = context.AfterFunc(ctx, w.end) // No guard: end only sets a deadline.
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.writing = true; w.cut {
		deadline = longAgo
	}
	_ = w.tcp.SetWriteDeadline(deadline)
}

// finish ends a write. After it, the deadline of tcp does not change.
func (w *tcpWrites) finish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writing = false
	_ = w.tcp.SetWriteDeadline(time.Time{})
}
