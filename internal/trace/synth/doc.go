// SPDX-License-Identifier: Apache-2.0

// Package synth makes packets of the events that a stack reports while it is traced, so that
// package decode and Wireshark can read them: a CLC message becomes a TCP segment, and an LLC
// or CDC message a RoCE packet. A RoCE packet gets the headers below its own.
//
// What a stack does not know is invented here: MAC addresses, sequence numbers and UDP source
// ports. Lengths and checksums are right, also the ICRC of packets that are complete.
//
// The package does no I/O. A [Maker] belongs to one goroutine at a time. Its tables have
// limits.
package synth
