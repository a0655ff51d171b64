// SPDX-License-Identifier: Apache-2.0

// Package run is the command smcr run: it starts an unmodified program whose
// TCP connections use SMC-R where the peer does too. It chooses what carries
// them, the kernel's SMC or the stack in user space of the network namespace,
// which it finds or starts, and tells how the connections fared.
//
// A process runs one program at a time. The kernel's SMC and a stack that runs
// already need no privilege; starting a stack needs those of smcr serve.
package run
