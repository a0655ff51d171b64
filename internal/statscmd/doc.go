// SPDX-License-Identifier: Apache-2.0

// Package statscmd is the command smcr stats: the counters of the SMC stacks. It
// needs no privileges.
package statscmd
