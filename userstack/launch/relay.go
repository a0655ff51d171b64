// SPDX-License-Identifier: Apache-2.0

//go:build linux

package launch

import (
	"time"

	"golang.org/x/sys/unix"

	"smcr/userstack/relay"
)

// lastBytesTime limits how long the launcher sends bytes that a program wrote
// before it ended, if the peer reads slowly.
const lastBytesTime = 10 * time.Second

// relayed runs the relay until both directions ended.
func (c *conn) relayed() {
	defer func() {
		c.mu.Lock()
		c.pair.closeEnd()
		_ = unix.Close(c.tcp)
		c.tcp = -1
		c.mu.Unlock()
		c.s.sockets.retire(c)
	}()
	app, err := endOf(c.pair.end)
	if err != nil {
		c.s.log.Warn("cannot relay", "err", err)
		return
	}
	app.DropUrgent = c.dropUrgent
	tcp, err := tcpOf(c.tcp)
	if err != nil {
		_ = app.Close()
		c.s.log.Warn("cannot relay", "err", err)
		return
	}
	r := &relay.Relay{
		App: app, Net: tcp, Broken: c.reset,
		LauncherGone: c.s.ctx.Done(), CutOrphans: c.s.cutOrphans, OrphanLimit: lastBytesTime, Guard: &c.s.tasks.guard,
	}
	r.Run(nil)
}

// endOf makes the relay's end of a pair.
func endOf(fd int) (*relay.Socket, error) {
	f, err := relay.File(fd)
	if err != nil {
		return nil, err
	}
	s, err := relay.NewSocket(f)
	if err != nil {
		_ = f.Close()
	}
	return s, err
}

// tcpOf makes the network side of a relay.
func tcpOf(fd int) (*relay.TCP, error) {
	f, err := relay.File(fd)
	if err != nil {
		return nil, err
	}
	t, err := relay.NewTCP(f)
	if err != nil {
		_ = f.Close()
	}
	return t, err
}

// dropUrgent moves the program's end past the urgent mark at which it is.
func (c *conn) dropUrgent() {
	app := c.program()
	if app < 0 {
		return
	}
	relay.DropUrgent(app)
	_ = unix.Close(app)
}
