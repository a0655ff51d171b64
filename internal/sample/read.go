// SPDX-License-Identifier: Apache-2.0

package sample

import (
	"context"
	"errors"

	"smcr/internal/cmdutil"
	"smcr/internal/sysfs"
	"smcr/nl"
)

// Kernel is the name of the kernel's stack.
const Kernel = "kernel"

// A Stack is what one stack answered. What it does not support is empty.
type Stack struct {
	Name      string // as [nl.Backend] has it
	Info      nl.SysInfo
	Stats     nl.Stats
	Fallbacks nl.Fallbacks
	Groups    []nl.LinkGroup
	Links     []nl.Link
	Devices   []nl.Device // Resent also for devices of the kernel
}

// Retransmits returns the retransmissions of all devices. ok is false if none counts them.
func (s *Stack) Retransmits() (n uint64, ok bool) {
	if r := nl.SumResent(s.Devices); r != nil {
		return r.Packets, true
	}
	return 0, false
}

// A Sink takes the connections of stacks.
type Sink interface {
	// Begin is called before the first connection of a stack, and again if the table of the
	// stack is read from its beginning: the connections before that do not count.
	Begin(*Stack)
	// Connection is called with each connection, which is valid during the call.
	Connection(*nl.Connection)
	// End is called after the last connection of a stack.
	End()
}

// A Reader reads samples.
type Reader struct {
	// Factory knows the stacks to ask.
	Factory *cmdutil.Factory
	// Sysfs has the counters of the kernel's devices.
	Sysfs sysfs.FS
}

// Read asks all stacks, also those that have handed over to another process and still have
// connections. It connects to them anew, so that it finds stacks that have been started
// again. conns gets the connections; with nil, they are not asked for. The error matches
// [nl.ErrNoBackend] if there is no stack.
func (r *Reader) Read(ctx context.Context, conns Sink) ([]*Stack, error) {
	var all []*Stack
	name := r.Factory.Name()
	read := func(ctx context.Context, m nl.Multi) error {
		for _, b := range m {
			s, err := r.stack(ctx, b, conns, name)
			if err != nil {
				return err
			}
			all = append(all, s)
		}
		return nil
	}
	if err := r.Factory.With(ctx, read); err != nil {
		return nil, err
	}
	if err := r.Factory.EachEnding(ctx, read); err != nil {
		return nil, err
	}
	return all, nil
}

// stack asks one stack. name adds the processes of connections that it does not know.
func (r *Reader) stack(ctx context.Context, b nl.Backend, conns Sink, name func(string, *nl.Connection)) (*Stack, error) {
	s := &Stack{Name: b.Name}
	err := errors.Join(
		ask(ctx, &s.Info, b.SysInfo),
		ask(ctx, &s.Stats, b.Stats),
		ask(ctx, &s.Fallbacks, b.Fallbacks),
		ask(ctx, &s.Groups, b.LinkGroups),
		ask(ctx, &s.Links, b.Links),
		ask(ctx, &s.Devices, b.Devices),
	)
	if err != nil {
		return nil, first(err)
	}
	if b.Name == Kernel {
		for i := range s.Devices {
			if n, ok := r.Sysfs.Retransmits(s.Devices[i].Name); ok {
				s.Devices[i].Resent = &nl.Resent{Packets: n}
			}
		}
	}
	if conns == nil {
		return s, nil
	}
	take := func(c *nl.Connection) {
		name(s.Name, c)
		conns.Connection(c)
	}
	if err := nl.EachConnection(ctx, b.Control, func() { conns.Begin(s) }, take); err != nil {
		if !errors.Is(err, nl.ErrNotSupported) {
			return nil, err
		}
		conns.Begin(s)
	}
	conns.End()
	return s, nil
}

// ask stores the answer to a question. An operation that the stack does not have is no error.
func ask[T any](ctx context.Context, to *T, question func(context.Context) (T, error)) error {
	v, err := question(ctx)
	if errors.Is(err, nl.ErrNotSupported) {
		return nil
	}
	*to = v
	return err
}

// first returns the first of joined errors: the others mostly repeat it.
func first(err error) error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return j.Unwrap()[0]
	}
	return err
}
