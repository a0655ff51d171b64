// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"sync"
	"syscall"

	"smcr/internal/config"
	"smcr/nl"
)

// A keeper is the Control of a stack that commands speak to. It keeps what they
// change in a file, so that the next stack of the network namespace has it too.
// A change is done whether or not it can be kept; SysInfo tells which.
type keeper struct {
	nl.Control // of the stack
	log        *slog.Logger
	v1, v2     bool // the versions of RoCE that were asked for

	mu     sync.Mutex // held during a change, and while the file is read anew
	file   *stateFile // nil: there is no place
	err    error      // why nothing is kept
	warned string     // the last reason that was logged, empty while changes are kept
	// What the stack had from the configuration file, and the file's digest.
	base   *config.Config
	digest string
}

var _ nl.Control = (*keeper)(nil)

// newKeeper returns a keeper with its file in dir.
func newKeeper(ctl nl.Control, dir string, log *slog.Logger) *keeper {
	k := &keeper{Control: ctl, log: log, base: &config.Config{}}
	if k.file, k.err = newStateFile(dir); k.err == nil {
		k.err = k.file.place()
	}
	if k.noteFailure(k.err); k.err == nil {
		k.file.removeStale()
	}
	return k
}

// noteFailure remembers why nothing is kept, or that it is. It logs a reason that is
// not the last one that it logged.
func (k *keeper) noteFailure(err error) {
	k.err = err
	if err == nil {
		k.warned = ""
		return
	}
	if text := err.Error(); text != k.warned {
		k.warned = text
		k.log.Warn("changes by commands last only as long as this stack", "why", err)
	}
}

// SysInfo implements nl.Control.
func (k *keeper) SysInfo(ctx context.Context) (nl.SysInfo, error) {
	info, err := k.Control.SysInfo(ctx)
	if err != nil {
		return info, err
	}
	if !info.RoCEv1 && !info.RoCEv2 {
		info.RoCEv1, info.RoCEv2 = k.v1, k.v2
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.err != nil {
		info.StateError = k.err.Error()
	} else {
		info.StateFile = k.file.path
	}
	return info, nil
}

// setBase takes what the stack has now as that of the configuration file with
// the digest. k.mu is held.
func (k *keeper) setBase(ctx context.Context, digest string) error {
	base, err := config.Export(ctx, k.Control)
	if err != nil {
		return err
	}
	k.base, k.digest = base, digest
	return nil
}

// forget removes the state, which a configuration file has replaced. k.mu is
// held.
func (k *keeper) forget() {
	if k.file == nil {
		return
	}
	if err := k.file.remove(); err != nil {
		k.log.Warn("cannot remove the state of the stack", "err", err)
	}
}

// restore brings the stack, which has what the configuration file says, to the
// state that an earlier one left. Whatever is wrong with that is logged and
// changes nothing. k.mu is held.
func (k *keeper) restore(ctx context.Context, usable func(*config.Config) (*config.Config, error)) {
	if k.file == nil {
		return
	}
	b, err := k.file.read()
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var s *config.State
	if err == nil {
		s, err = config.ParseState(b)
	}
	if err == nil && s.File != k.digest {
		k.log.Warn("the configuration file has changed since the last change by a command: all changes by commands are dropped", "file", k.file.path)
		k.forget()
		return
	}
	var target *config.Config
	if err == nil {
		target, err = usable(s.On(k.base))
	}
	var changes []config.Change
	if err == nil {
		changes, err = target.Apply(ctx, k.Control)
	}
	if err != nil {
		aside, rerr := k.file.putAside()
		k.log.Error("cannot restore the changes by commands", "err", err, "aside", aside, "rename", rerr)
		return
	}
	for _, ch := range changes {
		k.log.Info("state", "change", ch.String())
	}
	k.log.Info("state read", "file", k.file.path, "changes", len(changes))
}

// change makes a change and keeps it.
func (k *keeper) change(ctx context.Context, do func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	err := do()
	if err != nil && !errors.Is(err, syscall.EAGAIN) { // EAGAIN: done, and more
		return err
	}
	// It is done, whether or not somebody still waits for the answer.
	kerr := k.keep(context.WithoutCancel(ctx))
	k.noteFailure(kerr)
	return err
}

// keep writes what the stack has.
func (k *keeper) keep(ctx context.Context) error {
	if k.file == nil {
		return k.err
	}
	now, err := config.Export(ctx, k.Control)
	if err != nil {
		return err
	}
	s := config.State{File: k.digest, Namespace: k.file.ino, Base: k.base, Now: now}
	if !s.Changed() {
		if err := k.file.place(); err != nil {
			return err
		}
		return k.file.remove()
	}
	b, err := s.AppendYAML(nil)
	if err != nil {
		return err
	}
	return k.file.write(b)
}

// AddPNET implements nl.Control.
func (k *keeper) AddPNET(ctx context.Context, p nl.PNET) error {
	return k.change(ctx, func() error { return k.Control.AddPNET(ctx, p) })
}

// RemovePNET implements nl.Control.
func (k *keeper) RemovePNET(ctx context.Context, id string) error {
	return k.change(ctx, func() error { return k.Control.RemovePNET(ctx, id) })
}

// FlushPNET implements nl.Control.
func (k *keeper) FlushPNET(ctx context.Context) error {
	return k.change(ctx, func() error { return k.Control.FlushPNET(ctx) })
}

// AddUEID implements nl.Control.
func (k *keeper) AddUEID(ctx context.Context, eid string) error {
	return k.change(ctx, func() error { return k.Control.AddUEID(ctx, eid) })
}

// RemoveUEID implements nl.Control.
func (k *keeper) RemoveUEID(ctx context.Context, eid string) error {
	return k.change(ctx, func() error { return k.Control.RemoveUEID(ctx, eid) })
}

// FlushUEID implements nl.Control.
func (k *keeper) FlushUEID(ctx context.Context) error {
	return k.change(ctx, func() error { return k.Control.FlushUEID(ctx) })
}

// SetSEID implements nl.Control.
func (k *keeper) SetSEID(ctx context.Context, on bool) error {
	return k.change(ctx, func() error { return k.Control.SetSEID(ctx, on) })
}

// SetHSLimitation implements nl.Control.
func (k *keeper) SetHSLimitation(ctx context.Context, on bool) error {
	return k.change(ctx, func() error { return k.Control.SetHSLimitation(ctx, on) })
}
