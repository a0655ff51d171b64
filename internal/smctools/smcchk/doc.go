// SPDX-License-Identifier: Apache-2.0

// Package smcchk is the program smc_chk of smc-tools: it tests whether
// connections use SMC. Its echo server and client are this program again,
// started by smc_run ([Peer]). [Main] serves one command line; the processes it
// starts end with it. It needs the privileges of smc_run.
package smcchk
