// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"smcr/guard"
	"smcr/internal/config"
	"smcr/internal/sdnotify"
)

// configTimeout is the time limit for applying a configuration file.
const configTimeout = 10 * time.Second

// A configurator applies the configuration file to the stack, at the start and on
// SIGHUP.
type configurator struct {
	path    string   // "": config.DefaultPath, if it exists
	eids    []string // the enterprise IDs of a stack without a configuration
	control *persistentControl
	log     *slog.Logger
	notify  func(...string) error // tells the service manager
}

// start applies the file, and the changes that commands made in an earlier stack. On
// error, the stack is unchanged.
func (c *configurator) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, configTimeout)
	defer cancel()
	c.control.mu.Lock()
	defer c.control.mu.Unlock()
	read, err := c.load(ctx, &config.State{Base: &config.Config{}, Now: &config.Config{}})
	if err != nil {
		return err
	}
	if err := c.control.setBase(ctx, read.digest, read.programs); err != nil {
		return err
	}
	c.control.restore(ctx, func(file *config.Config) (*config.Config, error) {
		return c.usable(ctx, file, "state")
	})
	return nil
}

// reload applies the file, which replaces the changes that commands have made. What they have
// attached beside the programs of the file stays so.
func (c *configurator) reload(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, configTimeout)
	defer cancel()
	c.control.mu.Lock()
	defer c.control.mu.Unlock()
	if c.control.over {
		return errOver
	}
	now, err := config.Export(ctx, c.control.Control)
	if err != nil {
		return err
	}
	read, err := c.load(ctx, &config.State{Base: c.control.base, Now: now})
	if err != nil || !read.found {
		return err
	}
	if err := c.control.setBase(ctx, read.digest, read.programs); err != nil {
		return err
	}
	c.control.keep(ctx)
	return nil
}

// A loaded is what load has applied.
type loaded struct {
	found    bool // there is a file
	digest   string
	programs []config.Program // of the file
}

// load applies the file, if there is one. Missing sections get the values of a stack that was
// just started, so that a reload leads to the same state as a restart. before is the state of
// the stack.
func (c *configurator) load(ctx context.Context, before *config.State) (read loaded, err error) {
	path := c.path
	if path == "" {
		path = config.DefaultPath
	}
	file, digest, err := readConfig(path)
	if errors.Is(err, fs.ErrNotExist) && c.path == "" {
		return read, c.addEIDs(ctx)
	}
	if err != nil {
		return read, fmt.Errorf("%s: %w", path, err)
	}
	usable, err := c.usable(ctx, file, path)
	if err != nil {
		return read, fmt.Errorf("%s: %w", path, err)
	}
	for i := range usable.Programs {
		usable.Programs[i].UID = uint32(os.Geteuid()) // who asks for them
	}
	target := usable.Complete(c.eids...)
	target.Programs = before.Attached(target.Programs)
	changes, err := target.Apply(ctx, c.control.Control)
	if err != nil {
		return read, fmt.Errorf("%s: %w", path, err)
	}
	for _, ch := range changes {
		c.log.Info("configuration", "change", ch.String())
	}
	c.log.Info("configuration read", "file", path, "changes", len(changes))
	return loaded{true, digest, usable.Programs}, nil
}

// addEIDs adds the enterprise IDs that a stack has without a configuration file.
func (c *configurator) addEIDs(ctx context.Context) error {
	for _, id := range c.eids {
		if err := c.control.Control.AddUEID(ctx, id); err != nil && !errors.Is(err, syscall.EEXIST) {
			return fmt.Errorf("default enterprise ID: %w", err)
		}
	}
	return nil
}

// readConfig returns a configuration file and the digest of its content. Programs do not count: 'smcr service' adds some, and what other
// commands have changed goes on.
func readConfig(path string) (*config.Config, string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, "", fmt.Errorf("config: %w", err)
	}
	defer f.Close()
	var b bytes.Buffer
	file, err := config.Read(io.TeeReader(f, &b))
	if err != nil {
		return nil, "", err
	}
	rest := config.WithoutPrograms(b.Bytes())
	if len(rest) == 0 {
		return file, "", nil
	}
	return file, fmt.Sprintf("%x", sha256.Sum256(rest)), nil
}

// usable returns a configuration without the entries that the stack cannot use, and
// logs these entries.
func (c *configurator) usable(ctx context.Context, file *config.Config, from string) (*config.Config, error) {
	usable, skipped, err := file.Usable(ctx, c.control.Control, func(name string) bool {
		_, err := net.InterfaceByName(name)
		return err == nil
	})
	for _, s := range skipped {
		c.log.Warn("configuration entry ignored", "file", from, "what", s)
	}
	return usable, err
}

// reloadOnHangup calls reload on each SIGHUP, until stop is called. stop waits for a
// reload in progress.
func (c *configurator) reloadOnHangup(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	var wg sync.WaitGroup
	g := guard.Guard{Log: c.log}
	wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-hangup:
				_ = c.notify(sdnotify.Reloading())
				var err error
				if fell := g.Do("the configuration file", func() { err = c.reload(ctx) }); fell == nil && err != nil {
					c.log.Error("configuration file rejected, nothing was changed", "err", err)
				}
				_ = c.notify(sdnotify.Ready)
			}
		}
	})
	return func() {
		signal.Stop(hangup)
		cancel()
		wg.Wait()
	}
}
