// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"log/slog"
	"runtime/debug"
)

// Error is a panic that was survived. errors.As finds it.
type Error struct {
	// What the goroutine did, such as "rendezvous".
	What string
	// Value is what panic was called with.
	Value any
	// Stack is the stack of the goroutine, as package debug formats it.
	Stack []byte
}

// Error says what the goroutine did and why it ended, without the stack.
func (e *Error) Error() string { return fmt.Sprintf("internal error in %s: %v", e.What, e.Value) }

// Unwrap returns the value of the panic if it is an error.
func (e *Error) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}

// A Guard says where panics are told. A nil Guard survives them silently. Its
// methods may be called from any goroutine.
type Guard struct {
	// Log gets each panic with its stack, as an error. Nil discards it.
	Log *slog.Logger
	// Count, if set, is called once for each panic.
	Count func()
}

// Do calls f. If f panics it tells so and returns an *Error; otherwise nil. What
// f has deferred runs before that.
func (g *Guard) Do(what string, f func()) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = g.Caught(what, v)
		}
	}()
	f()
	return nil
}

// Caught tells of a panic whose value was recovered by the caller, in a function
// that the panicking goroutine had deferred.
func (g *Guard) Caught(what string, value any) *Error {
	e := &Error{What: what, Value: value, Stack: debug.Stack()}
	if g == nil {
		return e
	}
	if g.Count != nil {
		g.Count()
	}
	if g.Log != nil {
		g.Log.Error("internal error, please report it: the affected part has ended, the rest continues",
			"in", what, "panic", fmt.Sprint(value), "stack", string(e.Stack))
	}
	return e
}
