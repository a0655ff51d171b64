// SPDX-License-Identifier: Apache-2.0

// Smcrfield runs the cases of package field in all modes, and prints a table of what is as
// over TCP and what is not. `make field` runs it.
//
//	smcrfield -smcr bin/smcr [-cases REGEXP] [-modes NAMES] [-rounds N] [-v]
//
// The exit status is 1 if something differs from TCP, 2 if the run failed.
package main
