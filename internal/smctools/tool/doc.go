// SPDX-License-Identifier: Apache-2.0

// Package tool has what the programs of smc-tools share: the [Env] in which they run,
// the parsing of command lines as in the C library and in util-linux, and the error
// texts of libnl. An Env serves one command line and one goroutine. The privileges
// depend on the stack.
package tool
