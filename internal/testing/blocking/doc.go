// SPDX-License-Identifier: Apache-2.0

// Package blocking has stream sockets, of TCP or of the kernel's SMC, whose
// calls block in the kernel, as those of a plain C program do: the programs of
// the tests make their connections with them. Package net knows nothing of
// AF_SMC, and keeps its sockets non-blocking.
//
// A [Conn] may be used by several goroutines, one call on either direction at a
// time; closing it does not end a call under way. It needs no privilege.
package blocking
