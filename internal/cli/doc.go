// SPDX-License-Identifier: Apache-2.0

// Package cli is the root of the program smcr: its commands, and the only place
// where errors become text and exit statuses:
//
//	0  done; also where a list is empty
//	1  error
//	2  usage: the command line is wrong
//	3  something named does not exist
//	4  permission denied
//	5  there is no such SMC stack
//
// A program that smcr run starts ends smcr with its own status.
package cli
