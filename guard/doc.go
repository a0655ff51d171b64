// SPDX-License-Identifier: Apache-2.0

// Package guard keeps a fault of the program within what it happened for: a
// panic in the goroutine of one connection, one session, one client or one link
// group ends that alone, and not the process that serves all the others.
//
// A panic is logged with its stack and counted. Who calls [Guard.Do] ends what
// the function worked on: its state is not to be trusted any more.
package guard
