// SPDX-License-Identifier: Apache-2.0

package userstack

import (
	"io"
	"net"
	"os"

	"smcr/userstack/conn"
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

// overErr returns the error of a connection that has ended although the program did not
// close it: the error of the core, or a reset.
func overErr(err error) error {
	if err == nil || err == io.EOF {
		return conn.ErrReset
	}
	return err
}

// kick has the carrier look at its connection, and a goroutine that waits in the
// place of the engine too.
func (c *Conn) kick() {
	if c.drive != nil {
		c.drive.Poke()
	}
	if k := c.carried.p.Load(); k != nil {
		k.task.Schedule()
	}
}

func (c *Conn) opError(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: c.local, Addr: c.remote, Err: err}
}
