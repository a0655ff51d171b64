// SPDX-License-Identifier: Apache-2.0

// Package gauge measures what a process has: descriptors, threads, memory, and, if the
// process agrees, goroutines and the live heap of Go.
//
// A process that agrees calls [Serve]. Its answers, also a CPU profile and the stacks of
// its goroutines, are fetched with [Ask] over a unix socket. Everything else comes from
// /proc. What the values mean for a test does not belong here.
package gauge
