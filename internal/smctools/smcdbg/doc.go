// SPDX-License-Identifier: Apache-2.0

// Package smcdbg is the program smc_dbg of smc-tools: it collects what the other
// programs print. [Main] serves one command line and one goroutine and needs no
// privileges.
package smcdbg
