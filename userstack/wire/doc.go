// SPDX-License-Identifier: Apache-2.0

// Package wire encodes and decodes the messages of SMC-R version 1
// (RFC 7609, appendix A) and of version 2 as Linux speaks it: the TCP option,
// the CLC messages that flow in the TCP byte stream, and the LLC and CDC
// messages that flow over the link by RDMA SEND. Layouts that Linux added to
// version 1 without breaking it (the 40 byte area of a proposal, the eyecatcher
// bits of CONFIRM LINK) are covered too, and the comments of the messages
// concerned say so; docs/interop.md lists them.
//
// Where version 2 changes a message much, it has a type of its own (AcceptV2,
// ConfirmV2, DeleteRKeyV2, ReqAddLink). A Proposal may offer both versions; its
// Offer method reads what it says under version 2, WithOffer writes it. Other
// LLC messages differ in their header only, and their field Layout says how it
// is laid out; a link group keeps one LLCLayout and writes with AppendLLC. The
// TCP option and CDC are the same in both.
//
// One file holds one message: its layout, its type, its encoder and its
// decoder. What belongs here is bytes and only bytes; which message may
// follow which, and what a field makes a peer do, belongs to the link group.
//
// Every message has AppendBinary (encoding.BinaryAppender) and a Parse
// function. All fields are big-endian on the wire, but for two of LLC version 2
// (see LLCLayout), and in host order in the structs. Reserved fields are zero
// on send and ignored on receipt, so parsing and appending again may clear bits
// that no specification defines. Lengths are exact, except that ACCEPT, CONFIRM
// and LLC messages of version 2 may have bytes behind what is known of them, as
// Linux allows. Parsers copy what they keep and never retain their argument.
// CDC messages, and LLC messages without a list, are encoded and parsed without
// allocation, except that ParseLLC boxes its result in an interface.
//
// The package has no state: every function is safe for concurrent use, none
// blocks, and none needs a privilege. It imports the standard library only.
package wire
