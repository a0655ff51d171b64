// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"smcr/guard"
	"smcr/internal/config"
	"smcr/internal/sdnotify"
)

// configTimeout is the time limit for applying a configuration file.
const configTimeout = 10 * time.Second

// A configurator applies the configuration files to the stack, at the start and on
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
	if err := c.control.setBase(ctx, read); err != nil {
		return err
	}
	c.control.restore(ctx, func(file *config.Config) (*config.Config, error) {
		return c.usable(ctx, file, "state", nil)
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
	if err != nil || len(read.files) == 0 {
		return err
	}
	if err := c.control.setBase(ctx, read); err != nil {
		return err
	}
	c.control.keep(ctx)
	return nil
}

// A loaded is what load has applied.
type loaded struct {
	files    []string // that were read; none if there is none
	digest   string
	programs []config.Program // of the files
}

// load applies the configuration file and its drop-in files, if there is one of them. Missing sections get the values of a stack that was
// just started, so that a reload leads to the same state as a restart. before is the state of
// the stack.
func (c *configurator) load(ctx context.Context, before *config.State) (read loaded, err error) {
	path := c.path
	if path == "" {
		path = config.DefaultPath
	}
	files, err := config.Files(path)
	if errors.Is(err, fs.ErrNotExist) && c.path == "" {
		return read, c.addEIDs(ctx)
	}
	var all *config.Config
	if err == nil {
		all, err = config.Merge(files)
	}
	if err != nil {
		return read, err // it names the file
	}
	read = loaded{files: config.Paths(files), digest: digest(path, files)}
	names := strings.Join(read.files, " ")
	usable, err := c.usable(ctx, all, names, files)
	if err != nil {
		return read, fmt.Errorf("%s: %w", names, err)
	}
	for i := range usable.Programs {
		usable.Programs[i].UID = uint32(os.Geteuid()) // who asks for them
	}
	target := usable.Complete(c.eids...)
	target.Programs = before.Attached(target.Programs)
	changes, err := target.Apply(ctx, c.control.Control)
	switch {
	case err != nil && config.Locate(err, files):
		return read, err // it names the file
	case err != nil:
		return read, fmt.Errorf("%s: %w", names, err)
	}
	for _, ch := range changes {
		c.log.Info("configuration", "change", ch.String())
	}
	c.log.Info("configuration read", "file", names, "changes", len(changes))
	read.programs = usable.Programs
	return read, nil
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

// digest returns the digest of the content of files that [config.Merge] has accepted, or "" if there is nothing in them. Programs do not
// count, nor does a drop-in file that has only these: 'smcr service' adds some, and what other commands have changed goes on.
func digest(main string, files []config.File) string {
	h, some := sha256.New(), false
	for _, f := range files {
		rest := config.WithoutPrograms(f.Text)
		if c, err := config.Parse(rest); len(rest) == 0 || f.Path != main && err == nil && c.Empty() {
			continue
		}
		if some {
			fmt.Fprintf(h, "\x00%d\x00", len(rest))
		}
		some = true
		h.Write(rest)
	}
	if !some {
		return ""
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// usable returns a configuration without the entries that the stack cannot use, and
// logs these entries, with the one of the files that has each, or else from.
func (c *configurator) usable(ctx context.Context, file *config.Config, from string, files []config.File) (*config.Config, error) {
	usable, skipped, err := file.Usable(ctx, c.control.Control, func(name string) bool {
		_, err := net.InterfaceByName(name)
		return err == nil
	})
	for _, s := range skipped {
		c.log.Warn("configuration entry ignored", "file", cmp.Or(s.Where(files), from), "what", s.Text)
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
