// SPDX-License-Identifier: Apache-2.0

// Forbid runs a program that may not make a system call, as in a sandbox, for package e2e.
//
//	forbid NUMBER ERRNO|kill PROGRAM ARGUMENT…
//
// The call with the NUMBER fails with ERRNO, or its process is killed by SIGSYS. The program has
// no new privileges.
package main
