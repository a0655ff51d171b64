// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"context"
	"errors"
	"time"

	"smcr/nl"
)

// A Source answers the questions of [Read]. Every [nl.Control] does.
type Source interface {
	SysInfo(context.Context) (nl.SysInfo, error)
	LinkGroups(context.Context) ([]nl.LinkGroup, error)
	Links(context.Context) ([]nl.Link, error)
	Devices(context.Context) ([]nl.Device, error)
	Stats(context.Context) (nl.Stats, error)
	Fallbacks(context.Context) (nl.Fallbacks, error)
	Connections(context.Context) ([]nl.Connection, error)
}

// A Listing is what one stack answered. The tables are read one after the other, so they
// may differ by what happened meanwhile.
type Listing struct {
	Stack     string    // its name
	Time      time.Time // when Read began
	Info      nl.SysInfo
	Groups    []nl.LinkGroup
	Links     []nl.Link
	Devices   []nl.Device
	Stats     nl.Stats
	Fallbacks nl.Fallbacks
	Conns     []nl.Connection
}

// Read asks the stack that users know by a name. Tables that the stack does not have stay
// empty, such as the counters of a kernel that is older than them.
func Read(ctx context.Context, name string, s Source) (Listing, error) {
	l := Listing{Stack: name, Time: time.Now()}
	var err error
	if l.Info, err = s.SysInfo(ctx); err != nil {
		return Listing{}, err
	}
	errs := []error{
		into(ctx, &l.Groups, s.LinkGroups), into(ctx, &l.Links, s.Links), into(ctx, &l.Devices, s.Devices),
		into(ctx, &l.Stats, s.Stats), into(ctx, &l.Fallbacks, s.Fallbacks), into(ctx, &l.Conns, s.Connections),
	}
	if err := errors.Join(errs...); err != nil {
		return Listing{}, err
	}
	return l, nil
}

// into sets v to the answer of a stack, if the stack knows the question.
func into[T any](ctx context.Context, v *T, ask func(context.Context) (T, error)) error {
	if ctx.Err() != nil {
		return nil // the question before has failed
	}
	got, err := ask(ctx)
	if errors.Is(err, nl.ErrNotSupported) {
		return nil
	}
	if err == nil {
		*v = got
	}
	return err
}
