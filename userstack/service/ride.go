// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"smcr/userstack"
	"smcr/userstack/broker"
	"smcr/userstack/engine"
	"smcr/userstack/internal/inside"
	"smcr/userstack/relay"
)

// A connection rides while the engine carries its bytes, without a goroutine.
// The goroutines of the relay start when there is something else to do, follow
// the table of the relay, and end if the connection can ride again:
//
//	rides, and                                      | then
//	the engine hands a direction back: urgent byte, | goroutines; after an urgent byte the
//	end of the stream, error, end of the connection | connection rides again
//	the service ends, or the launcher has ended     | goroutines, which end the connection;
//	                                                | it does not ride any more
//
// Connections that stay TCP, and all of them without an engine, have goroutines
// all the time.

// relay runs a relay until the connection has ended. If it returns goesOn, the
// connection continues after its return, and relay closes sock when it has ended.
func (s *Service) relay(ctx context.Context, c *broker.Conn, sock, end *broker.Descriptor, n relay.Stream) (goesOn bool) {
	safe := false
	defer func() {
		if !safe { // a panic
			_ = n.Abort()
		}
	}()
	h := hold(c, sock, s.cfg.MinKeepAlive)
	app, err := s.takeEnd(end, n)
	var data *relay.Socket
	if err == nil {
		if data, err = relay.NewSocket(app); err != nil {
			markUnread(app)
			_ = app.Close()
		}
	}
	if err != nil {
		s.log.Error("cannot take over the program's connection", "err", err)
		_ = n.Abort()
		c.SetCloseReason(err.Error())
		dropEnd(end)
		safe = true
		return false
	}
	smc, _ := n.(*userstack.Conn)
	var carriage inside.Carriage
	if smc != nil {
		carriage = s.programs.Carriage(smc)
		// The TCP connection ends with its last descriptor, so this one must be
		// closed before the stack's.
		release := c.Retain()
		carriage.AfterDone(func() { sock.CloseAside(release) }) // the engine calls this
		_ = smc.SetOOBInline(true)                              // the option of the program's end counts
	}
	h.carryOptions(smc, carriage)
	data.DropUrgent = func() { _ = c.DropUrgent(ctx) }
	setReset := func() {
		why := ""
		if carriage != nil {
			why = carriage.ResetReason()
		}
		c.SetCloseReason(broker.ResetText(why))
	}
	r := &relay.Relay{App: data, Net: n, Guard: s.programs.Guard(), Linger0: &h.linger0, LauncherGone: c.LauncherGone().Done(), Broken: func(e syscall.Errno) {
		setReset()
		_ = c.Broken(context.WithoutCancel(ctx), e)
		markUnread(app)
	}}
	leave := s.enterRelay()
	if smc != nil {
		r.Carried = func() { c.SetCarried(carriage.Bytes()) }
		r.Detach = carriage.Detach
	}
	if engines, _ := app.(*engine.Socket); engines != nil && smc != nil {
		safe = true
		end := c.Keep()
		carriage.Attach(engines)
		ride(r, smc, carriage, s.ending, c.LauncherGone(), func(reset bool, err error) {
			defer end()
			defer sock.Close() //nolint:errcheck // no one needs the result
			defer leave()
			switch {
			case err != nil:
				c.SetCloseReason("internal error of the stack")
			case reset:
				setReset()
			}
		})
		return true
	}
	defer leave()
	if r.Run(s.ending.Done()) {
		setReset()
	}
	safe = true
	return false
}

// relayHere carries the bytes between an end of a pair and TCP, because the other
// program has its TCP socket.
func (s *Service) relayHere(ctx context.Context, c *broker.Conn, sock, end *broker.Descriptor) (goesOn bool) {
	h := hold(c, sock, s.cfg.MinKeepAlive)
	tcp, _, err := h.takeTCP()
	if err != nil {
		dropEnd(end)
		return false
	}
	s.relayTCP(ctx, c, sock, end, tcp)
	return false
}

// markUnread allows a launcher whose session has ended to reset the program's end itself.
// Broken cannot reach such a launcher any more.
func markUnread(app relay.Conn) {
	if rc, err := app.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { _ = broker.MarkUnread(int(fd)) })
	}
}

// ride does the same as r.Run, without a goroutine while conn rides. conn is r.Net,
// and k its carriage, which is attached. over is called when Run would return; an error means a panic.
func ride(r *relay.Relay, conn *userstack.Conn, k inside.Carriage, ending, left context.Context, over func(reset bool, err error)) {
	const what = "the end of a ride"
	forget := []func() bool{
		context.AfterFunc(ending, r.Guard.Func(what, k.Recall)),
		context.AfterFunc(left, r.Guard.Func(what, k.Recall)),
	}
	var work func()
	begin := func() { go r.Guard.Func("the end of a relay", work)() }
	work = func() {
		rides := false
		err := r.Guard.Do("a relay", func() { rides = r.Carry(ending.Done()) })
		if err == nil && rides && k.Ride(begin) {
			return
		}
		for _, f := range forget {
			f()
		}
		if err != nil {
			_ = conn.Abort()
		}
		over(r.Finish(), err)
	}
	if !k.Ride(begin) {
		begin()
	}
}

// takeEnd takes over an end of a pair, which package broker has checked. If an engine serves n,
// the end belongs to that engine.
func (s *Service) takeEnd(end *broker.Descriptor, n relay.Stream) (relay.Conn, error) {
	c, _ := n.(*userstack.Conn)
	var loop *engine.Loop
	switch {
	case len(s.cfg.Engines) == 0:
	case c != nil:
		loop = s.programs.Carriage(c).Loop()
	default:
		loop = s.cfg.Engines[0]
	}
	if loop == nil {
		u, err := takeUnix(end)
		if err != nil {
			return nil, err
		}
		return relay.Unix(u), nil
	}
	fd, err := end.Dup()
	if err != nil {
		return nil, fmt.Errorf("service: take a program's end: %w", err)
	}
	if err = unix.SetNonblock(fd, true); err == nil {
		var app *engine.Socket
		if app, err = loop.NewSocket(fd); err == nil {
			_ = end.Close()
			return app, nil
		}
	}
	unix.Close(fd)
	return nil, fmt.Errorf("service: take a program's end: %w", err)
}

// takeUnix makes a net.UnixConn from the service's end of a pair. It closes end unless
// it fails.
func takeUnix(end *broker.Descriptor) (*net.UnixConn, error) {
	fd, err := end.Dup()
	if err != nil {
		return nil, fmt.Errorf("service: take a program's end: %w", err)
	}
	c, err := fileConn(fd)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		_ = c.Close()
		return nil, fmt.Errorf("service: the program's end is %T, not a unix stream", c)
	}
	_ = end.Close()
	return u, nil
}
