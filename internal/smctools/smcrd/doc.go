// SPDX-License-Identifier: Apache-2.0

// Package smcrd is the programs smcr and smcd of smc-tools: options, an object,
// a command. Both are one program that shows either SMC-R or SMC-D. [Main] serves
// one command line and one goroutine; it needs no privileges except for changes
// of a kernel's stack.
package smcrd
