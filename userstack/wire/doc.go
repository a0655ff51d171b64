// SPDX-License-Identifier: Apache-2.0

// Package wire encodes and decodes the messages of SMC-R version 1 (RFC 7609,
// appendix A) and of version 2 as Linux sends them: the TCP option, the CLC messages
// in the TCP byte stream, and the LLC and CDC messages that are sent over a link by
// RDMA SEND. It also knows what Linux has added to version 1 (the area of 40 bytes in a
// proposal, the eyecatcher bits of CONFIRM LINK). The comments of these messages say
// so; docs/interop.md has a list.
//
// If version 2 changes a message much, the message has a type of its own (AcceptV2,
// ConfirmV2, DeleteRKeyV2, ReqAddLink). A Proposal may offer both versions: its method
// Offer reads what it offers under version 2, and WithOffer writes it. Other LLC
// messages differ only in their header, and their field Layout is the layout of the
// header. A link group keeps one LLCLayout and encodes with AppendLLC. The TCP option
// and CDC messages are the same in both versions.
//
// Each file has one message: its layout, its type, its encoder and its decoder. The
// package deals with bytes only. The order of messages and the effect of a field
// belong to packages rendezvous, linkgroup and conn.
//
// Every message has the method AppendBinary (encoding.BinaryAppender) and a Parse
// function. All fields are big-endian on the wire, except two of LLC version 2 (see
// LLCLayout), and plain integers in the structs. Reserved fields are sent as zero and
// ignored in received messages. So a message that is parsed and encoded again may lose
// bits that no specification defines. Lengths must be exact. But ACCEPT, CONFIRM and
// LLC messages of version 2 may be longer than what is known, as in Linux. Parsers
// copy what they need and do not keep their argument. CDC messages, and LLC messages
// without a list, are encoded and parsed without allocation, except that ParseLLC
// returns an interface.
//
// The package has no state. All functions are safe for concurrent use, do not block
// and need no privilege. The package imports the standard library and package smc.
package wire
