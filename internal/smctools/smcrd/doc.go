// SPDX-License-Identifier: Apache-2.0

// Package smcrd has the programs smcr and smcd of smc-tools, whose command lines
// consist of options, an object and a command. Both are one program, which shows either
// SMC-R or SMC-D. [Main] serves one command line and one goroutine. It needs privileges
// only to change a kernel's stack.
package smcrd
