// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"smcr/internal/config"
	"smcr/nl"
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

	file *stateFile // nil: there is no directory for it

	notes sync.Mutex // held for moments only: SysInfo must not wait for a change
	err   error      // why nothing is saved
	files []string   // the configuration files that were read last

	mu     sync.Mutex // held during a change, while the configuration file is read, and while another process takes over
	logged string     // the last warning of change
	// What the stack had from the configuration files, and their digest.
	base   *config.Config
	digest string
	over   bool // another process is the stack
}

var (
	_ nl.Control  = (*persistentControl)(nil)
	_ nl.Attacher = (*persistentControl)(nil)
	_ nl.Learner  = (*persistentControl)(nil)
)

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
		removeStaleStates(filepath.Dir(p.file.path), p.file.path)
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
		info.Problems, info.NoWire = append(info.Problems, all...), p.lacks.noWire()
	}
	files, err := p.noted()
	info.ConfigFiles = files
	if err != nil {
		info.StateError = err.Error()
	} else {
		info.StateFile = p.file.path
	}
	return info, nil
}

// noted returns which configuration files were read, and why nothing is saved, or nil.
func (p *persistentControl) noted() (files []string, notSaved error) {
	p.notes.Lock()
	defer p.notes.Unlock()
	return p.files, p.err
}

// setBase notes that the stack now has what the configuration files say, and
// programs beside those of the files. p.mu is held.
func (p *persistentControl) setBase(ctx context.Context, read loaded) error {
	base, err := config.Export(ctx, p.Control)
	if err != nil {
		return err
	}
	base.Programs = slices.DeleteFunc(base.Programs, func(x config.Program) bool {
		return !slices.ContainsFunc(read.programs, func(y config.Program) bool { return x.Cgroup == y.Cgroup })
	})
	p.base, p.digest = base, read.digest
	p.notes.Lock()
	defer p.notes.Unlock()
	p.files = read.files
	return nil
}

// restore changes the stack, which has what the configuration file says, to the state
// that the stack before it saved. If that was with another file, only the cgroups that
// commands have attached beside those of the file count. If that is not possible, it logs why and changes
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
	var target *config.Config
	another := err == nil && s.File != p.digest
	switch {
	case err != nil:
	case another:
		text := "all changes by commands are dropped"
		target = new(*p.base)
		if target.Programs != nil {
			target.Programs = s.Attached(p.base.Programs)
		}
		if len(target.Programs) > len(p.base.Programs) {
			text += ", but for the cgroups that they have attached"
		}
		p.log.Warn("the configuration has changed since the last change by a command: "+text, "file", p.file.path)
	default:
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
	if another {
		p.keep(ctx)
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
	p.keep(ctx)
	return err
}

// keep saves the state after a change, which is done: also if nobody waits for the answer any
// more. p.mu is held.
func (p *persistentControl) keep(ctx context.Context) {
	serr := p.save(context.WithoutCancel(ctx))
	p.notes.Lock()
	p.err = serr
	p.notes.Unlock()
	text := ""
	if serr != nil {
		text = serr.Error()
	}
	if text != "" && text != p.logged {
		p.log.Warn("changes by commands last only as long as this stack", "why", serr)
	}
	p.logged = text
}

// save writes the state of the stack to the file.
func (p *persistentControl) save(ctx context.Context) error {
	if p.file == nil {
		_, notSaved := p.noted()
		return notSaved
	}
	now, err := config.Export(ctx, p.Control)
	if err != nil {
		return err
	}
	s := config.State{File: p.digest, Namespace: p.file.ino, Base: p.base, Now: now}
	if !s.Changed() {
		err := p.file.remove()
		return cmp.Or(p.file.place(), err)
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

// Learnt implements nl.Learner.
func (p *persistentControl) Learnt(ctx context.Context) ([]nl.Learnt, error) {
	l, err := nl.LearnerOf(p.Control)
	if err != nil {
		return nil, err
	}
	return l.Learnt(ctx)
}

// Attachments implements nl.Attacher.
func (p *persistentControl) Attachments(ctx context.Context) ([]nl.Attachment, error) {
	a, err := nl.AttacherOf(p.Control)
	if err != nil {
		return nil, err
	}
	return a.Attachments(ctx)
}

// Attach implements nl.Attacher.
func (p *persistentControl) Attach(ctx context.Context, x nl.Attachment) error {
	a, err := nl.AttacherOf(p.Control)
	if err != nil {
		return err
	}
	return p.change(ctx, func() error { return a.Attach(ctx, x) })
}

// Detach implements nl.Attacher.
func (p *persistentControl) Detach(ctx context.Context, path string) error {
	a, err := nl.AttacherOf(p.Control)
	if err != nil {
		return err
	}
	return p.change(ctx, func() error { return a.Detach(ctx, path) })
}

// Enter implements nl.Attacher. The kernel keeps the cgroup of a run, and the next stack finds it.
func (p *persistentControl) Enter(ctx context.Context, who nl.Peer, always bool) (nl.Attachment, error) {
	a, err := nl.AttacherOf(p.Control)
	if err != nil {
		return nl.Attachment{}, err
	}
	return a.Enter(ctx, who, always)
}

// Listen implements nl.Attacher. The kernel keeps whose a listening socket is, with the socket.
func (p *persistentControl) Listen(ctx context.Context, who nl.Peer, fds []int) error {
	a, err := nl.AttacherOf(p.Control)
	if err != nil {
		return err
	}
	return a.Listen(ctx, who, fds)
}
