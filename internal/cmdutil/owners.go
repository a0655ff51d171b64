// SPDX-License-Identifier: Apache-2.0

package cmdutil

import (
	"strings"

	"smcr/internal/owner"
	"smcr/nl"
)

// Name returns a function that adds the process to a connection in the listing of a stack, where the stack does not know it: that
// of a program that keeps its socket. It looks at all processes once, at the first such connection.
func (f *Factory) Name() func(stack string, c *nl.Connection) { return NameBy(f.Owners) }

// NameBy is Factory.Name for programs without a Factory.
func NameBy(owners func() owner.Lookup) func(stack string, c *nl.Connection) {
	var find owner.Lookup
	return func(stack string, c *nl.Connection) {
		if c.PID != 0 || owners == nil || !here(stack) {
			return
		}
		if find == nil {
			find = owners()
		}
		if p, ok := find(socketOf(c)); ok {
			c.PID, c.Command = p.PID, p.Command
		}
	}
}

// here reports whether the stack with this name is in user space and in this network namespace.
func here(stack string) bool { return stack == "user" || strings.HasPrefix(stack, "ending-") }

func socketOf(c *nl.Connection) owner.Socket {
	if !c.Remote.IsValid() { // it listens: the stack has asked the kernel for it
		return owner.Socket{Inode: uint32(c.Inode)}
	}
	return owner.Socket{Local: Plain(c.Local), Remote: Plain(c.Remote)}
}
