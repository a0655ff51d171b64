// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"fmt"
	"os"

	"smcr/internal/confine"
	"smcr/internal/oplog"
	"smcr/internal/place"
	"smcr/internal/runs"
)

// serveRuns makes cgroups for programs: see package runs. It is not a stack.
func serveRuns(ctx context.Context, o *Options) error {
	log := oplog.New(o.Err, o.LogLevel)
	defer oplog.Flush(log)
	if os.Geteuid() != 0 {
		return fmt.Errorf("only root can make cgroups for the programs of others: %w", os.ErrPermission)
	}
	l, err := runs.Inherited()
	if err != nil {
		return err
	}
	cfg := runs.Config{Idle: IdleTimeout, Log: log, Confine: func() {
		if err := confine.KeepOnly(0); err != nil {
			log.Warn("the process keeps capabilities that it does not need", "err", err)
		}
	}}
	if o.Start.OnDemand { // no service manager starts it again
		cfg.Needed = func() bool { return runs.StackRuns(logDir, place.Commands) }
	}
	return runs.Serve(ctx, l, cfg)
}
