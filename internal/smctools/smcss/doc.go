// SPDX-License-Identifier: Apache-2.0

// Package smcss is the program smcss of smc-tools: the SMC sockets. [Main]
// serves one command line and one goroutine and needs no privileges.
package smcss
