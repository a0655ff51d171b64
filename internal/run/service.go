// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"errors"
	"syscall"
	"time"

	"smcr/internal/place"
	"smcr/internal/serve"
	"smcr/userstack/broker"
	"smcr/userstack/service"
)

// errEmbedded means that the stack at the default address does not serve launchers.
var errEmbedded = errors.New("the stack of this network namespace belongs to another program, see 'smcr info', and carries only the connections of that program: " +
	"end the program, or let it answer commands at another address (userstack.Stack.ServeControl)")

// startWait is how long session waits for a stack that another process has just
// started.
const startWait = time.Second

// session opens a session with the stack of this network namespace and
// starts the stack if there is none.
func session(ctx context.Context, command string, serveArgs []string, flags ...broker.Flags) (_ *broker.Client, started bool, err error) {
	c, err := broker.DialStack(ctx, command, flags...)
	if err == nil || !absent(err) {
		return c, false, err
	}
	err = serve.StartOnDemand(ctx, serveArgs...)
	if err != nil && !errors.Is(err, service.ErrRunning) {
		return nil, false, err
	}
	// Started by this process, or by another one a moment ago.
	c, derr := broker.DialStack(ctx, command, flags...)
	for end := time.Now().Add(startWait); err != nil && derr != nil && absent(derr); c, derr = broker.DialStack(ctx, command, flags...) {
		if ctx.Err() != nil || time.Now().After(end) {
			return nil, false, errEmbedded
		}
		time.Sleep(10 * time.Millisecond)
	}
	return c, err == nil, derr
}

// Session opens a session for a command of smcr that tests the stack, and starts the
// stack if there is none. The error says what to do.
func Session(ctx context.Context, command string) (_ *broker.Client, started bool, err error) {
	c, started, err := session(ctx, command, nil)
	if err != nil {
		return nil, false, sessionError(err)
	}
	return c, started, nil
}

// absent reports whether err means that no process serves at the address. Other errors
// mean that a service refuses. Whatever is within place.ErrAbsent, that is no stack: a unit of systemd
// with ProtectHome=yes gets EACCES for the directory of its user.
func absent(err error) bool {
	return errors.Is(err, place.ErrAbsent) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
