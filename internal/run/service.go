// SPDX-License-Identifier: Apache-2.0

package run

import (
	"context"
	"errors"
	"os"
	"time"

	"smcr/internal/cmdutil"
	"smcr/internal/serve"
	"smcr/nl"
	"smcr/userstack/service"
)

// startWait is how long Stack waits for a stack that another process has just started.
const startWait = time.Second

// Stack returns the stack of this network namespace, and starts it if there is none, with these flags of smcr serve. The error says
// what to do.
func Stack(ctx context.Context, flags ...string) (_ *nl.Client, started bool, err error) {
	c, err := nl.DialUser(ctx)
	if !errors.Is(err, nl.ErrNoBackend) {
		return c, false, err
	}
	err = serve.StartOnDemand(ctx, flags...)
	switch {
	case errors.Is(err, serve.ErrPrivilege):
		return nil, false, cmdutil.Say(errors.Join(err, os.ErrPermission), "no smcr stack in this network namespace and no privilege to start one: run 'smcr serve' as root")
	case err != nil && !errors.Is(err, service.ErrRunning):
		return nil, false, err
	}
	// Started by this process, or by another one a moment ago.
	c, derr := nl.DialUser(ctx)
	for end := time.Now().Add(startWait); errors.Is(derr, nl.ErrNoBackend) && ctx.Err() == nil && time.Now().Before(end); c, derr = nl.DialUser(ctx) {
		time.Sleep(10 * time.Millisecond)
	}
	return c, err == nil, derr
}
