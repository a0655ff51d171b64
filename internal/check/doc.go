// SPDX-License-Identifier: Apache-2.0

// Package check implements the command smcr check: it checks step by step whether
// SMC-R can be used with a peer, and says what to do if not. It does not change the
// configuration of a stack.
//
// The steps (steps.go) are pure functions of facts. The facts come from the stack's
// control interface, from rtnetlink (host.go), and from one connection that is opened
// and closed again (probe_kernel.go, probe_wire.go). A check runs in the goroutine of
// its caller; --timeout limits its time. It needs no privileges, except to start a
// user-space stack if none is running.
package check
