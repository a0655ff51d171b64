// SPDX-License-Identifier: Apache-2.0

// Package info is the command smcr info: what the SMC stacks of a network
// namespace are and can do. It needs no privileges.
package info
