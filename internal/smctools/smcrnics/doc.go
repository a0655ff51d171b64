// SPDX-License-Identifier: Apache-2.0

// Package smcrnics is the program smc_rnics of smc-tools, which lists and switches the
// RNICs and ISM devices of an IBM Z machine, from sysfs. [Main] serves one command line
// and one goroutine. Listing needs no privileges; enabling and disabling needs root.
package smcrnics
