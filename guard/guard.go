// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"log/slog"
	"runtime/debug"
)

// Error is a panic that did not end the process. Callers find it with errors.As.
type Error struct {
	// What is what the goroutine did, such as "rendezvous".
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

// A Guard says where panics are reported. A nil Guard reports them nowhere. Its
// methods may be called by any goroutine.
type Guard struct {
	// Log gets an error with the stack for each panic. With nil there is no log.
	Log *slog.Logger
	// Count, if set, is called once for each panic.
	Count func()
}

// Do calls f and returns nil. If f panics, Do reports it and returns an *[Error]; the
// functions that f has deferred run first.
func (g *Guard) Do(what string, f func()) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = g.Caught(what, v)
		}
	}()
	f()
	return nil
}

// Func returns a function that calls f as Do does. It is for functions that are called in
// goroutines of their own: those of go statements, sync.WaitGroup.Go, time.AfterFunc and
// context.AfterFunc.
func (g *Guard) Func(what string, f func()) func() {
	return func() { _ = g.Do(what, f) }
}

// Elsewhere calls f in a goroutine of its own and waits for it. If f panics, Elsewhere
// panics with an *[Error], which has the stack of that goroutine: so the panic is handled
// where the call was.
func Elsewhere(what string, f func()) {
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = (*Guard)(nil).Do(what, f)
	}()
	<-done
	if err != nil {
		panic(err)
	}
}

// Caught reports a panic that the caller has recovered: value is what recover
// returned. It must be called in a deferred function of the goroutine that panicked,
// because it takes the stack. The stack of a panic of [Elsewhere] is the one there.
func (g *Guard) Caught(what string, value any) *Error {
	e := &Error{What: what, Value: value}
	if before, ok := value.(*Error); ok {
		e.Stack = before.Stack
	} else {
		e.Stack = debug.Stack()
	}
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
