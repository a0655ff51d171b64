// SPDX-License-Identifier: Apache-2.0

// Package smcrnics is the program smc_rnics of smc-tools: the RNICs and ISM
// devices of an IBM Z machine by their function IDs, as sysfs has them. [Main]
// serves one command line and one goroutine. Listing needs no privileges,
// enabling and disabling needs root.
package smcrnics
