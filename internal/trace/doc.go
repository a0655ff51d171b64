// SPDX-License-Identifier: Apache-2.0

// Package trace is the command 'smcr trace': it prints the CLC, LLC and CDC messages and the
// RoCE packets of a stack in user space, or of a capture file.
//
// The flags, and what connects a source of packets with the output, belong here. Package
// capture reads and writes the files, package decode knows what is in the packets, and package
// synth makes packets of what a stack reports.
package trace
