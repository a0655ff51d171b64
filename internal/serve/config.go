// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"smcr/internal/config"
	"smcr/nl"
)

// configTimeout bounds the application of a configuration file.
const configTimeout = 10 * time.Second

// A configurator brings the stack to the configuration file, at the start and
// on SIGHUP.
type configurator struct {
	path string // "": config.DefaultPath, which need not exist
	ctl  nl.Control
	log  *slog.Logger
}

// load applies the file. What the file leaves out becomes as after a start, so
// that a reload leads to the same state as a restart. On error the stack is as
// it was.
func (c *configurator) load(ctx context.Context) error {
	path := c.path
	if path == "" {
		path = config.DefaultPath
	}
	file, err := config.Load(path)
	if errors.Is(err, fs.ErrNotExist) && c.path == "" {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	ctx, cancel := context.WithTimeout(ctx, configTimeout)
	defer cancel()
	usable, skipped, err := file.Usable(ctx, c.ctl, func(name string) bool {
		_, err := net.InterfaceByName(name)
		return err == nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, s := range skipped {
		c.log.Warn("configuration entry ignored", "file", path, "what", s)
	}
	changes, err := usable.Complete().Apply(ctx, c.ctl)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, ch := range changes {
		c.log.Info("configuration", "change", ch.String())
	}
	c.log.Info("configuration read", "file", path, "changes", len(changes))
	return nil
}

// reloadOnHangup calls load on each SIGHUP until stop, which waits for it.
func (c *configurator) reloadOnHangup(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangup:
				if err := c.load(ctx); err != nil {
					c.log.Error("configuration file rejected, nothing was changed", "err", err)
				}
			}
		}
	})
	return func() {
		signal.Stop(hangup)
		cancel()
		wg.Wait()
	}
}
