// SPDX-License-Identifier: Apache-2.0

// Package check is the command smcr check: whether SMC-R can work toward a
// peer, step by step, and what to do where it cannot.
//
// The steps (steps.go) are pure functions of facts; facts come from the stack's
// control interface, from rtnetlink (host.go), and from one connection that is
// opened and closed again (probe_kernel.go, probe_user.go). A check runs in the
// goroutine of its caller and is bounded by --timeout. It needs no privileges,
// except to start a stack in user space where none runs.
package check
