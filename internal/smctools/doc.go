// SPDX-License-Identifier: Apache-2.0

// Package smctools is the programs of smc-tools 1.8.5 (smcr, smcd, smcss,
// smc_pnet, smc_run, smc_chk, smc_rnics, smc_dbg), one package each below this
// one, and the choice among them. For the same state of a stack they print what
// the originals print and end with the same status; docs/smc-tools.md says where
// not. Functions serve one command line and one goroutine. Privileges depend on
// the stack that is asked and are those that the originals need.
package smctools
