// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"smcr/internal/oplog"
	"smcr/internal/sdnotify"
	"smcr/userstack/service"
)

// defaultDrain is how long a stack that has handed over waits for its connections. There can be
// place.Parts stacks, so a connection that never ends must not keep a place for ever: a user who
// keeps one in each generation would block the next takeover. A day is longer than most work.
const defaultDrain = 24 * time.Hour

// Takeover says how one stack takes over from another.
type Takeover struct {
	// From takes over from the stack that runs, if there is one.
	From bool
	// DrainTimeout is that of service.Config: see defaultDrain.
	DrainTimeout time.Duration
	// Release is the release of smcr, for the log of the other stack.
	Release string
}

// takeoverTries is how many stacks may end while this process takes over from them.
const takeoverTries = 3

// again calls run, and again if the stack from which it was to take over has ended before:
// then this process starts like after any other end of a stack.
func again(ctx context.Context, o *Options, run func(context.Context, *Options) error) (err error) {
	for range takeoverTries {
		if err = run(ctx, o); !errors.Is(err, service.ErrPredecessorEnded) || ctx.Err() != nil {
			return err
		}
		oplog.New(o.Err, o.LogLevel).Warn("starting as after the end of a stack", "err", err)
	}
	return err
}

// approach asks the stack that runs to hand over, if the flags say so. It returns nil if
// there is none.
func (o *Options) approach(ctx context.Context) (*service.Predecessor, error) {
	if !o.Takeover.From {
		return nil, nil
	}
	return service.Approach(ctx, o.Takeover.Release)
}

// takeOver starts the stack with start, which reads the configuration. If there is a
// predecessor, its changes by commands are complete before, and it hands over afterwards.
func takeOver(s *service.Service, p *service.Predecessor, start func() error) error {
	if p == nil {
		return start()
	}
	if err := s.Freeze(); err != nil {
		return err
	}
	if err := start(); err != nil {
		return err
	}
	return s.Assume()
}

// A successor is the process that takes over, as the changes by commands and the service
// manager must know it.
type successor struct {
	control *persistentControl
	manager *sdnotify.Notifier
	web     *webServer // or nil
	log     *slog.Logger
	main    bool // the service manager was told that it is the main process
}

// freeze is the first function of service.Service.OnHandOver.
func (n *successor) freeze() (thaw func(over bool)) {
	n.main = false
	changes := n.control.freeze()
	return func(over bool) {
		changes(over)
		if over {
			n.web.end() // the other process waits for the port
		}
		switch {
		case over && n.main:
			n.manager.Leave()
		case n.main:
			n.log.Error("the process that the service manager watches has not taken over")
		}
	}
}

// commit is the second function of service.Service.OnHandOver. The process becomes the main
// process of the unit. If it is not of this unit, the service manager goes on watching this
// process, which therefore goes on reporting.
func (n *successor) commit(pid int) {
	if n.manager == nil {
		return
	}
	same, err := sameCgroup(pid)
	if err == nil && same {
		err = n.manager.Send(sdnotify.MainProcess(pid))
		n.main = err == nil
	}
	if !n.main {
		n.log.Warn("the service manager does not watch the process that takes over, because it is not of the same unit: "+
			"the unit ends with this process", "pid", pid, "err", err)
	}
}
