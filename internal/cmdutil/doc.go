// SPDX-License-Identifier: Apache-2.0

// Package cmdutil holds what the commands of smcr share: the [Factory] that
// gives them their streams and their stacks, flags, and errors with an exit
// status. A Factory serves one command line and one goroutine. Privileges depend
// on the stack that is asked.
package cmdutil
