// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"net"
	"os"
)

// barred tells why nothing may begin now: the end of the connection comes
// before that of time, as with TCP.
func (c *Conn) barred(dl *deadline) error {
	switch {
	case c.end.closed.Load():
		return net.ErrClosed
	case dl.expired():
		return os.ErrDeadlineExceeded
	}
	return nil
}

// awake says that wait has nothing to wait for any more.
func (c *Conn) awake(ch <-chan struct{}, dl *deadline) bool {
	if len(ch) > 0 || dl.expired() {
		return true
	}
	select {
	case <-c.end.done:
		return true
	default:
		return false
	}
}

// wait waits for a wake-up, the deadline or the end of the connection.
func (c *Conn) wait(ch <-chan struct{}, dl *deadline, ready func() bool) error {
	if c.drive != nil && !c.drive.Drive(ready) {
		defer c.drive.Served()
	}
	select {
	case <-ch:
		return nil
	case <-c.end.done:
		return nil
	case <-dl.wait():
		return os.ErrDeadlineExceeded
	}
}
