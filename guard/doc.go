// SPDX-License-Identifier: Apache-2.0

// Package guard limits the effect of a Go panic. A panic in a goroutine that works
// for one connection, session, client or link group ends only that one, and not the
// process that serves all of them.
//
// A panic is logged with its stack and counted. The caller of [Guard.Do] must then end
// what the function worked on, because its state may be inconsistent.
//
// The package imports nothing of this module.
package guard
