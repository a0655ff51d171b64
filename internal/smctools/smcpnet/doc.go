// SPDX-License-Identifier: Apache-2.0

// Package smcpnet is the program smc_pnet of smc-tools: the pnetid table. [Main]
// serves one command line and one goroutine. Changing the table of a kernel needs
// CAP_NET_ADMIN.
package smcpnet
