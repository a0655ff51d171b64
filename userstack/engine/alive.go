// SPDX-License-Identifier: Apache-2.0

package engine

import "context"

// Alive waits until loop l has run a task, and returns nil. It returns the cause of the end
// of ctx if the loop does not come to it in time, and ErrClosed if the loop is closed.
func Alive(ctx context.Context, l *Loop) error {
	ran := make(chan struct{})
	// A loop that does not work may hold its lock, so another goroutine schedules the task.
	// No guard: it only takes the lock.
	go l.Task(func() { close(ran) }).Schedule()
	select {
	case <-ran:
		return nil
	case <-l.done:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
