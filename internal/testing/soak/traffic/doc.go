// SPDX-License-Identifier: Apache-2.0

// Package traffic is checksummed traffic of several kinds between a client and a server
// that sends back what it receives.
//
// The server ([Serve]) echoes TCP streams and UDP datagrams. The client ([Client]) knows
// each byte that it has sent, so it finds every byte that is lost, added or changed on
// the way there or back. It takes commands as lines of text ([Client.Run]) and answers
// with JSON lines ([Line]): counts, and each failure with its time, so that whoever
// started the client can decide whether something happened at that time that may end
// connections.
//
// The kinds of traffic, their bytes and their checks belong here. What disturbs the
// traffic, and the judgement about failures, do not: see package soak. The package knows
// nothing of SMC: the functions that make connections are arguments.
package traffic
