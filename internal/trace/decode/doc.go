// SPDX-License-Identifier: Apache-2.0

// Package decode turns packets into events that a person can read: the CLC messages in TCP
// connections, the LLC and CDC messages in SEND operations of RoCE, and the RoCE packets
// themselves. It also finds out what belongs together: which two queue pairs are a link, and
// which connection a CDC message is about.
//
// What a packet or a message means belongs here, and how an event is printed. Where packets
// come from does not: package capture reads files.
//
// Packets come from other hosts, so each table of a [Decoder] has a limit. When it is full, the
// oldest entry makes room. The package does no I/O and starts no goroutines. A Decoder
// belongs to one goroutine at a time.
package decode
