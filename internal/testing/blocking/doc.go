// SPDX-License-Identifier: Apache-2.0

// Package blocking has stream sockets, of TCP or of the kernel's SMC, whose calls block
// in the kernel, like those of a plain C program. The programs of the tests use them for
// their connections: package net does not support AF_SMC, and its sockets are
// non-blocking.
//
// Several goroutines may use a [Conn], but only one at a time for each direction. Closing
// it does not end a call in progress. No privilege is needed.
package blocking
