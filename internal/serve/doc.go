// SPDX-License-Identifier: Apache-2.0

// Package serve is the command smcr serve: the user-space stack of a network
// namespace as a process, started by an administrator or on demand by
// package run.
package serve
