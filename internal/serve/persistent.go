// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"sync"
	"syscall"

	"smcr/internal/config"
	"smcr/nl"
	"smcr/userstack/service"
)

// A persistentControl is the Control that a stack offers to commands. It saves what they
// change in a file, so that the next stack of the network namespace has it too. A change
// is done even if it cannot be saved; SysInfo reports whether it is saved.
type persistentControl struct {
	nl.Control // of the stack
	log        *slog.Logger
	release    string // of smcr
	v1, v2     bool   // the versions of RoCE that were asked for
	lacks      *lacks

	join func() []service.LocalJoin // the policy in use, for SysInfo

	file *stateFile // nil: there is no directory for it

	errMu sync.Mutex // held for moments only: SysInfo must not wait for a change
	err   error      // why nothing is saved

	mu     sync.Mutex // held during a change, while the configuration file is read, and while another process takes over
	logged string     // the last warning of change
	// What the stack had from the configuration file, and the file's digest.
	base   *config.Config
	digest string
	over   bool // another process is the stack
}

var _ nl.Control = (*persistentControl)(nil)

// newPersistentControl returns the persistentControl of ctl. Its file is in dir, or in
// sockets, the directory of the sockets, if the user of the stack cannot write to dir.
func newPersistentControl(ctl nl.Control, dir, sockets string, log *slog.Logger) *persistentControl {
	p := &persistentControl{Control: ctl, log: log, base: &config.Config{}}
	if p.file, p.err = newStateFile(dir, sockets); p.err == nil {
		p.err = p.file.place()
	}
	if p.err != nil {
		p.logged = p.err.Error()
		log.Warn("changes by commands last only as long as this stack", "why", p.err)
	} else {
		p.file.removeStale()
	}
	return p
}

// SysInfo implements nl.Control.
func (p *persistentControl) SysInfo(ctx context.Context) (nl.SysInfo, error) {
	info, err := p.Control.SysInfo(ctx)
	if err != nil {
		return info, err
	}
	info.StackVersion = p.release
	if !info.RoCEv1 && !info.RoCEv2 {
		info.RoCEv1, info.RoCEv2 = p.v1, p.v2
	}
	if p.lacks != nil {
		v2, all := p.lacks.now()
		info.RoCEv2 = info.RoCEv2 && v2
		info.Problems = append(info.Problems, all...)
	}
	if p.join != nil {
		info.LocalJoin = formatJoin(p.join())
	}
	if err := p.notSaved(); err != nil {
		info.StateError = err.Error()
	} else {
		info.StateFile = p.file.path
	}
	return info, nil
}

// notSaved returns why nothing is saved, or nil.
func (p *persistentControl) notSaved() error {
	p.errMu.Lock()
	defer p.errMu.Unlock()
	return p.err
}

// setBase notes that the stack now has what the configuration file with the digest says.
// p.mu is held.
func (p *persistentControl) setBase(ctx context.Context, digest string) error {
	base, err := config.Export(ctx, p.Control)
	if err != nil {
		return err
	}
	p.base, p.digest = base, digest
	return nil
}

// removeState removes the file, because a configuration file has replaced the state. p.mu
// is held.
func (p *persistentControl) removeState() {
	if p.file == nil {
		return
	}
	if err := p.file.remove(); err != nil {
		p.log.Warn("cannot remove the state of the stack", "err", err)
	}
}

// restore changes the stack, which has what the configuration file says, to the state
// that the stack before it saved. If that is not possible, it logs why and changes
// nothing. p.mu is held.
func (p *persistentControl) restore(ctx context.Context, usable func(*config.Config) (*config.Config, error)) {
	if p.file == nil {
		return
	}
	b, err := p.file.read()
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var s *config.State
	if err == nil {
		s, err = config.ParseState(b)
	}
	if err == nil && s.File != p.digest {
		p.log.Warn("the configuration file has changed since the last change by a command: all changes by commands are dropped", "file", p.file.path)
		p.removeState()
		return
	}
	var target *config.Config
	if err == nil {
		target, err = usable(s.On(p.base))
	}
	var changes []config.Change
	if err == nil {
		changes, err = target.Apply(ctx, p.Control)
	}
	if err != nil {
		aside, rerr := p.file.putAside()
		p.log.Error("cannot restore the changes by commands", "err", err, "aside", aside, "rename", rerr)
		return
	}
	for _, ch := range changes {
		p.log.Info("state", "change", ch.String())
	}
	p.log.Info("state read", "file", p.file.path, "changes", len(changes))
}

// errOver is the error of a change after another process has taken over.
var errOver = fmt.Errorf("another process is the stack now, try again: %w", syscall.EBUSY)

// freeze makes changes wait until thaw is called. If over is true, another process is the
// stack, and no change is possible any more.
func (p *persistentControl) freeze() (thaw func(over bool)) {
	p.mu.Lock()
	return func(over bool) {
		p.over = over
		p.mu.Unlock()
	}
}

// change makes a change and saves the state.
func (p *persistentControl) change(ctx context.Context, do func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.over {
		return errOver
	}
	err := do()
	if err != nil && !errors.Is(err, syscall.EAGAIN) { // EAGAIN: the change is done
		return err
	}
	// The change is done, so it is saved even if nobody waits for the answer any more.
	serr := p.save(context.WithoutCancel(ctx))
	p.errMu.Lock()
	p.err = serr
	p.errMu.Unlock()
	text := ""
	if serr != nil {
		text = serr.Error()
	}
	if text != "" && text != p.logged {
		p.log.Warn("changes by commands last only as long as this stack", "why", serr)
	}
	p.logged = text
	return err
}

// save writes the state of the stack to the file.
func (p *persistentControl) save(ctx context.Context) error {
	if p.file == nil {
		return p.notSaved()
	}
	now, err := config.Export(ctx, p.Control)
	if err != nil {
		return err
	}
	s := config.State{File: p.digest, Namespace: p.file.ino, Base: p.base, Now: now}
	if !s.Changed() {
		if err := p.file.place(); err != nil {
			return err
		}
		return p.file.remove()
	}
	b, err := s.AppendYAML(nil)
	if err != nil {
		return err
	}
	return p.file.write(b)
}

// AddPNET implements nl.Control.
func (p *persistentControl) AddPNET(ctx context.Context, entry nl.PNET) error {
	return p.change(ctx, func() error { return p.Control.AddPNET(ctx, entry) })
}

// RemovePNET implements nl.Control.
func (p *persistentControl) RemovePNET(ctx context.Context, id string) error {
	return p.change(ctx, func() error { return p.Control.RemovePNET(ctx, id) })
}

// FlushPNET implements nl.Control.
func (p *persistentControl) FlushPNET(ctx context.Context) error {
	return p.change(ctx, func() error { return p.Control.FlushPNET(ctx) })
}

// AddUEID implements nl.Control.
func (p *persistentControl) AddUEID(ctx context.Context, eid string) error {
	return p.change(ctx, func() error { return p.Control.AddUEID(ctx, eid) })
}

// RemoveUEID implements nl.Control.
func (p *persistentControl) RemoveUEID(ctx context.Context, eid string) error {
	return p.change(ctx, func() error { return p.Control.RemoveUEID(ctx, eid) })
}

// FlushUEID implements nl.Control.
func (p *persistentControl) FlushUEID(ctx context.Context) error {
	return p.change(ctx, func() error { return p.Control.FlushUEID(ctx) })
}

// SetSEID implements nl.Control.
func (p *persistentControl) SetSEID(ctx context.Context, on bool) error {
	return p.change(ctx, func() error { return p.Control.SetSEID(ctx, on) })
}

// SetHSLimitation implements nl.Control.
func (p *persistentControl) SetHSLimitation(ctx context.Context, on bool) error {
	return p.change(ctx, func() error { return p.Control.SetHSLimitation(ctx, on) })
}
