// SPDX-License-Identifier: Apache-2.0

// Package smctools has the programs of smc-tools 1.8.5, and chooses among them by name.
// The small ones are files of this package: smcss, smc_pnet, smc_run and smc_dbg. The
// larger ones are packages below it: smcrd (smcr and smcd), smcchk, smcrnics. What they
// share is in package tool.
//
// For the same state of a stack, the programs print what the programs of smc-tools
// print, and exit with the same status; docs/smc-tools.md lists the differences.
// Functions serve one command line and one goroutine. The privileges are those that the
// programs of smc-tools need.
package smctools
