// SPDX-License-Identifier: Apache-2.0

// Package cmdutil has what the commands of smcr share: the [Factory] with their streams
// and their stacks, filters and other flags, and errors with an exit status. What only
// one command needs does not belong here. A Factory serves one command line and one
// goroutine. The privileges depend on the stack.
package cmdutil
