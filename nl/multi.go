// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"context"
	"errors"
	"slices"
)

// A Backend is a stack with the name that users know it by.
type Backend struct {
	Name string // "kernel", "user", "ending-N" or "unix:ADDRESS"
	Control
}

// A Multi is the stacks of one network namespace. Its methods ask all of them.
type Multi []Backend

// DialAll connects to the stack of the kernel and to the stack in user space, as far as
// they exist. The error matches [ErrNoBackend] if there is none. It is also an error if a
// stack exists and cannot be asked: an answer without its part would be incomplete.
func DialAll(ctx context.Context) (Multi, error) {
	var m Multi
	for _, dial := range []func(context.Context) (*Client, error){DialKernel, DialUser} {
		c, err := dial(ctx)
		if errors.Is(err, ErrNoBackend) {
			continue
		}
		if err != nil {
			m.Close()
			return nil, err
		}
		m = append(m, Backend{c.Backend(), c})
	}
	if len(m) == 0 {
		return nil, ErrNoBackend
	}
	return m, nil
}

// Close closes the Controls of all stacks.
func (m Multi) Close() error {
	var errs []error
	for _, b := range m {
		errs = append(errs, b.Close())
	}
	return errors.Join(errs...)
}

// A Row is a value with the name of the stack that it comes from.
type Row[T any] struct {
	Stack string
	Value T
}

// Each asks every stack for one value, such as its statistics. It leaves out the stacks
// that do not support the question. If no stack does, the error matches
// [ErrNotSupported].
func Each[T any](ctx context.Context, m Multi, get func(Control, context.Context) (T, error)) ([]Row[T], error) {
	var rows []Row[T]
	var unsupported error
	for _, b := range m {
		v, err := get(b.Control, ctx)
		switch {
		case errors.Is(err, ErrNotSupported):
			unsupported = err
		case err != nil:
			return nil, err
		default:
			rows = append(rows, Row[T]{b.Name, v})
		}
	}
	if len(rows) == 0 && unsupported != nil {
		return nil, unsupported
	}
	return rows, nil
}

// All asks every stack for a table and returns the rows of all of them, in the
// order of the stacks.
func All[T any](ctx context.Context, m Multi, list func(Control, context.Context) ([]T, error)) ([]Row[T], error) {
	tables, err := Each(ctx, m, list)
	if err != nil {
		return nil, err
	}
	var rows []Row[T]
	for _, t := range tables {
		rows = slices.Grow(rows, len(t.Value))
		for _, v := range t.Value {
			rows = append(rows, Row[T]{t.Stack, v})
		}
	}
	return rows, nil
}
