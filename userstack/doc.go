// SPDX-License-Identifier: Apache-2.0

// Package userstack is a complete SMC-R stack in user space (RFC 7609, and
// version 2 of SMC-R as Linux speaks it). It moves TCP connections onto RDMA
// writes where the kernel has no AF_SMC, over software RoCE or any other
// [rdmaverbs.Provider].
//
// # Connections
//
// A [Stack] serves one network namespace. [Stack.Dial] and [Stack.Listen] take
// the place of net.Dial and net.Listen. A connection whose peer speaks SMC is a
// [*Conn]; any other is the *net.TCPConn that it would be without the stack, as
// RFC 7609 asks. [Dialer] and [ListenConfig] give more choice: with RequireSMC
// a connection that would stay TCP is refused, and Declined is told why.
// [IsSMC] and [AsConn] tell what a net.Conn is. [Stack.Client] and
// [Stack.Server] are for a program that makes its TCP connections itself.
//
// SMC is announced in the TCP handshake by an option that an eBPF program
// writes. [Stack.OptionError] says why where that is not permitted; SMC-R is
// then used only toward Config.AssumeSMC.
//
// Over software RoCE a stack has an engine of its own, with nothing to configure:
// goroutines in Read and Write look for packets and send them themselves, and a
// thread does so when there is none. Config.NoEngine is without.
//
// # Without copies
//
// Read copies from the RMB element, into which the peer has written, and Write into
// send memory, from which it is sent; [Conn.ReadFrom] and [Conn.WriteTo] have
// other readers and writers do so there. [Conn.Peek] and [Conn.Discard] give the
// element to the program, [Conn.Reserve] and [Conn.Commit] send memory. Each
// says how long.
//
// # Listings
//
// [Conn.LinkGroup] describes what carries a connection. [Stack.ServeControl]
// opens the stack to the commands of smcr, such as 'smcr linkgroup list', and
// [Stack.Control] to the program itself.
//
// # Inside
//
// Package rendezvous decides about each connection with the messages of CLC, and package
// linkgroup has the protocol of link groups: neither does I/O. Package driver drives link
// groups and moves bytes without waiting. This package drives the rendezvous on TCP
// connections, waits where net.Conn waits, and answers listings.
//
// # Concurrency and privileges
//
// All exported functions and methods are safe for concurrent use. Software RoCE
// needs CAP_NET_RAW, the TCP option CAP_BPF and CAP_NET_ADMIN. [New] takes the
// network namespace of the calling thread; call Dial, Listen and ServeControl
// there too.
package userstack
