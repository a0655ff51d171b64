// SPDX-License-Identifier: Apache-2.0

// Command smcr runs programs over SMC-R and manages SMC stacks: see smcr(8).
// What it may do depends on the command; listing needs no privileges.
package main
