// SPDX-License-Identifier: Apache-2.0

package run

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"smcr/internal/cgroup"
	"smcr/internal/cmdutil"
	"smcr/internal/printable"
	"smcr/internal/runs"
	"smcr/nl"
	"smcr/smc"
	"smcr/userstack/attach"
)

// While one stack takes over from another, neither takes programs, for no longer than takeoverPatience: smcr run tries
// again after takeoverPause each time.
const (
	takeoverPatience = 5 * time.Second
	takeoverPause    = 10 * time.Millisecond
)

// errEmbedded means that the stack at the default address takes no connections of programs.
var errEmbedded = errors.New("the stack of this network namespace belongs to another program, see 'smcr info', and carries only the connections of that program: " +
	"end the program, or let it answer commands at another address (userstack.Stack.ServeControl)")

// user has this process be in a cgroup whose connections the stack takes, with the sockets of the program.
func user(ctx context.Context, o *Options, log *slog.Logger) (*carrier, error) {
	progress := o.IO.Progress("waiting for the user-space stack")
	c, started, err := Stack(ctx, o.Serve...)
	progress.Stop()
	if err != nil {
		return nil, err
	}
	if !started && len(o.Serve) > 0 {
		log.Warn("the stack is already running: --netdev has no effect")
	}
	a, err := enter(ctx, c, o.NoAdapt, log)
	for end := time.Now().Add(takeoverPatience); errors.Is(err, syscall.EBUSY) && time.Now().Before(end); {
		// Another stack takes over, and has its sockets in a moment.
		time.Sleep(takeoverPause)
		if next, derr := nl.DialUser(ctx); derr == nil {
			_ = c.Close()
			c = next
		}
		a, err = enter(ctx, c, o.NoAdapt, log)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	log.Debug("the program keeps its sockets", "cgroup", a.Path, "own", a.Run)
	if a.Run {
		handOver(ctx, c, log)
	}
	return &carrier{mode: ModeUser, control: c, in: a}, nil
}

// enter is Enter. If the stack does not take connections at the devices, the error says why.
func enter(ctx context.Context, c *nl.Client, always bool, log *slog.Logger) (a nl.Attachment, err error) {
	_, err = c.Attachments(ctx)
	if errors.Is(err, nl.ErrNotSupported) {
		info, err := c.SysInfo(ctx)
		switch {
		case err != nil:
			return a, err
		case info.NoWire != "":
			return a, errors.New(info.NoWire)
		}
		return a, errEmbedded
	}
	if err == nil {
		a, err = Enter(ctx, c, always, log)
	}
	if err != nil {
		return a, cmdutil.Say(err, "the program cannot use the stack: %v", err)
	}
	return a, nil
}

// Enter has this process be in an attached cgroup of its own, so its connections are those of a program under smcr run. Where
// nobody can make one, it may be in an attached one already: then that is the result, without Run. always is that of nl.Attacher.
func Enter(ctx context.Context, c nl.Attacher, always bool, log *slog.Logger) (nl.Attachment, error) {
	// Whoever may make a cgroup here does: the stack has no right to where a user manager has.
	leave, err := attach.EnterOwn()
	if err != nil {
		log.Debug("the stack makes the cgroup", "err", err)
		leave = func() error { return nil }
	} else if stack, ok := c.(nl.Control); ok && os.Geteuid() == 0 {
		if info, err := stack.SysInfo(ctx); err == nil && info.UID != 0 {
			// That stack may not remove the cgroup.
			if err := runs.Ask(ctx); err != nil {
				log.Debug("the cgroup will stay", "err", err)
			}
		}
	}
	a, err := c.Enter(ctx, nl.Peer{}, always)
	if errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EROFS) || err == nil && !a.Run {
		// A stack that is not of root may not make it: attach.ErrNoRight.
		if asked := runs.Ask(ctx); asked == nil {
			a, err = c.Enter(ctx, nl.Peer{}, always)
		} else if err != nil {
			err = asked
		}
	}
	if err != nil {
		if lerr := leave(); lerr != nil {
			log.Debug("the cgroup stays", "err", lerr)
		}
	}
	return a, err
}

// ahead has this process be in a cgroup of its own before there is a stack: one that starts later finds it. Without a stack, the next
// smcr run removes it.
func ahead(ctx context.Context, log *slog.Logger) (nl.Attachment, bool) {
	if _, err := attach.EnterOwn(); err != nil {
		log.Debug("no cgroup for a stack that starts later", "err", err)
		if err := runs.Ask(ctx); err != nil {
			log.Debug("no cgroup for a stack that starts later", "err", err)
			return nl.Attachment{}, false
		}
	}
	own, err := cgroup.Of(0)
	return nl.Attachment{Path: own, UID: uint32(os.Geteuid()), Run: true}, err == nil
}

// superviseWire runs the program as a child of this process, and prints at its end what became of its connections.
func (s *starter) superviseWire(c *carrier) error {
	if err := s.runner.Start(s.path, s.o.Argv); err != nil {
		return s.notBegun(err)
	}
	s.runner.Wait()
	s.o.print(func(w io.Writer) { s.wireSummary(w, c) })
	return s.runner.Ended()
}

// wireSummary prints what became of the connections of the program, which has ended.
func (s *starter) wireSummary(w io.Writer, c *carrier) {
	if uid := uint32(os.Geteuid()); uid != 0 && c.in.UID != uid { // the stack shows nothing of it, and others may be in the cgroup
		fmt.Fprintf(w, "smcr: there is no summary: the program was below 'smcr run' of user %d, whose summary has its connections\n", c.in.UID)
		return
	}
	if !c.in.Run {
		fmt.Fprintln(w, "smcr: the program is in a cgroup that is attached as a whole: its connections are not counted apart, see 'smcr connection list'")
		return
	}
	if goesOn(c.in) {
		printable.Fprintf(w, "%s\n", untilNow)
	}
	if c.control == nil {
		// The program's end may have ended ctx.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), devicesTimeout)
		defer cancel()
		var err error
		if c.control, err = nl.DialUser(ctx); err != nil {
			fmt.Fprintln(w, "smcr: all connections over TCP: there is no stack")
			return
		}
	}
	o, err := outcomesOf(s.ctx, c.control, c.in)
	if err != nil {
		printable.Fprintf(w, "smcr: the stack does not say what became of the connections: %v\n", err)
		return
	}
	summary(w, o, func() []nl.Device { return userDevices(s.ctx) })
}

// goesOn reports whether processes of the program are left. Those that are about to end have a moment for it.
func goesOn(a nl.Attachment) bool {
	top, err := cgroup.Top()
	if err != nil {
		return false
	}
	own := strconv.Itoa(os.Getpid())
	for end := time.Now().Add(reportPatience); ; time.Sleep(5 * time.Millisecond) {
		b, err := os.ReadFile(filepath.Join(top, a.Path, "cgroup.procs"))
		others := slices.DeleteFunc(strings.Fields(string(b)), func(pid string) bool { return pid == own })
		if err != nil || len(others) == 0 {
			return false
		}
		if time.Now().After(end) {
			return true
		}
	}
}

// outcomes is what became of the connections of a program.
type outcomes struct {
	smcr, local uint64
	tcp, resets map[string]uint64 // by reason
}

// outcomesOf returns what became of the connections of the programs of a cgroup.
func outcomesOf(ctx context.Context, c nl.Attacher, a nl.Attachment) (s outcomes, err error) {
	all, err := c.Attachments(ctx)
	if err != nil {
		return s, err
	}
	i := slices.IndexFunc(all, func(o nl.Attachment) bool { return o.Path == a.Path })
	if i < 0 {
		return s, os.ErrNotExist
	}
	s = outcomes{smcr: all[i].SMCR, tcp: map[string]uint64{}, resets: map[string]uint64{}}
	for _, r := range all[i].TCP {
		why := smc.Diagnosis(r.Reason)
		if why == smc.DiagLocal {
			s.local += r.Count
			continue
		}
		s.tcp[cmp.Or(why.Text(), fmt.Sprintf("the reason 0x%08x", r.Reason))] += r.Count
	}
	for _, r := range all[i].Resets {
		s.resets[r.Why] += r.Count
	}
	return s, nil
}
