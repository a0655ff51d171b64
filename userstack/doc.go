// SPDX-License-Identifier: Apache-2.0

// Package userstack is a complete SMC-R stack in user space (RFC 7609, and version 2 of
// SMC-R as Linux speaks it). It moves TCP connections to SMC-R where the kernel has no
// AF_SMC, over software RoCE or any other [rdmaverbs.Provider].
//
// # Connections
//
// A [Stack] serves one network namespace. Use [Stack.Dial] and [Stack.Listen] instead of
// net.Dial and net.Listen. A connection whose peer speaks SMC is a [*Conn]. Any other
// connection is an ordinary *net.TCPConn, as RFC 7609 requires. [Dialer] and [ListenConfig]
// have more options: with RequireSMC, a connection that would stay TCP is refused, and
// Declined gets the reason. [IsSMC] and [AsConn] find out what a net.Conn is. [Stack.Client]
// and [Stack.Server] are for a program that makes its TCP connections itself.
//
// An eBPF program announces SMC with an option in the TCP handshake. If this is not
// permitted, [Stack.OptionError] returns the reason, and SMC-R is used only with the hosts in
// Config.AssumeSMC.
//
// Over software RoCE, a stack has an engine without any configuration. Goroutines in Read and
// Write handle packets themselves. A thread does this while there is no such goroutine.
// Config.NoEngine switches the engine off.
//
// # Without copies
//
// Read copies data from the RMB element, into which the peer writes. Write copies data to
// send memory, which is sent. [Conn.ReadFrom] and [Conn.WriteTo] let other readers and
// writers use this memory directly. [Conn.Peek] and [Conn.Discard] give the RMB element to
// the program, and [Conn.Reserve] and [Conn.Commit] give it send memory. The documentation of
// each method says how long the memory is valid.
//
// # Listings
//
// [Conn.LinkGroup] describes the link group of a connection. [Stack.ServeControl] lets the
// commands of smcr, such as 'smcr linkgroup list', use the stack. [Stack.Control] is the same
// for the program itself.
//
// # Inside
//
// Package rendezvous decides about each connection with CLC messages. Package linkgroup has
// the protocol of link groups. Both do no I/O. Package driver drives link groups and moves
// bytes without waiting. This package drives the rendezvous on TCP connections, waits where
// net.Conn waits, and answers listings.
//
// # Concurrency and privileges
//
// All exported functions and methods are safe for concurrent use. Software RoCE needs
// CAP_NET_RAW. The TCP option needs CAP_BPF and CAP_NET_ADMIN. [New] uses the network
// namespace of the calling thread. Call Dial, Listen and ServeControl in the same namespace.
package userstack
