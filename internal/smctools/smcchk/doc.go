// SPDX-License-Identifier: Apache-2.0

// Package smcchk is the program smc_chk of smc-tools, which tests whether connections
// use SMC. Its echo server and client are also this program, started by smc_run
// ([Peer]). [Main] serves one command line; the processes that it starts end with it.
// It needs the privileges of smc_run.
package smcchk
