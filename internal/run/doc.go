// SPDX-License-Identifier: Apache-2.0

// Package run implements the command smcr run. It starts an unmodified program whose
// TCP connections use SMC-R if the peer does too. It selects the transport: the
// kernel's SMC, or the user-space stack of the network namespace, which it finds or
// starts. At the end, it reports how many connections used SMC-R. Package launch
// traps and answers the system calls of the program.
//
// A process runs one program at a time. The kernel's SMC and a running stack need no
// privileges; starting a stack needs those of smcr serve.
package run
