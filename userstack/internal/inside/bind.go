// SPDX-License-Identifier: Apache-2.0

package inside

// bound is what package userstack has bound before any program code runs.
var bound Binding

// A Binding is the way to the unexported parts of package userstack. A config is a
// *userstack.Config, a stack a *userstack.Stack.
type Binding struct {
	SetHost func(config any, h Host)
	Tune    func(config any, t Tuning)
	Stack   func(stack any) any // returns a Stack[*userstack.Conn]
	Inspect func(stack any) any // returns an Inspector[*userstack.Conn]
}

// Bind sets the way to the unexported parts of userstack, which calls it once, when it
// is initialized.
func Bind(b Binding) (done bool) {
	bound = b
	return true
}

// SetHost makes the stacks of config, a *userstack.Config, run on h.
func SetHost(config any, h Host) { bound.SetHost(config, h) }

// StackOf returns the inside of stack, a *userstack.Stack. It allocates nothing.
func StackOf[C any](stack any) Stack[C] { return bound.Stack(stack).(Stack[C]) }
