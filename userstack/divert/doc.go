// SPDX-License-Identifier: Apache-2.0

// Package divert stands in the path of a host's own TCP connections, as a middlebox would, and takes
// those of which both ends announce SMC. A program keeps its TCP socket: no system call of it is
// trapped, no descriptor and no memory of it is shared. What is not taken was never touched.
//
//	program ── its TCP socket ═ device ═ inner ── the user of this package ── outer ═ device ═ peer
//
// eBPF programs at the devices of the host (bpf/divert.bpf.c) append the option of SMC (RFC 7609,
// section 3.1) to the SYN and SYN-ACK of sockets of attached cgroups, and hold the packet that would
// end the handshake: SYN-ACK on a client, the last ACK on a server. The stack makes outer, the near
// end of the peer's connection, and agrees with the peer over it. Then it makes inner, the far end of
// the program's connection, and lets go of the packet. Both are kernel sockets, made by TCP_REPAIR
// from the sequence numbers and options of the handshake, in a network namespace of the stack's own.
//
// One connection, from SYN to the two streams, in the order of the files:
//
//	bpf               leaving.h announces; arriving.h holds, and knows where packets go: divert.bpf.c has the files in order
//	table.go          the stack learns of it by the packet that is held, which heldread.go reads
//	frame.go          that packet
//	segment.go        what the headers say: sequence numbers, windows, options
//	flow.go           the connection: outer, inner, its end
//	letgo.go          its program gets the packet that was held
//	stream.go         their sockets, which repair.go makes of those in stock.go
//	splice.go         what carries the bytes if SMC is declined
//	shift.go          until the packets can pass: bpf/shift.h
//
// Beside: divert.go has what a stack has one of, namespace.go, settings.go, thread.go and held.go its
// namespaces and devices, programs.go the loading of the programs, takeover.go what several stacks of a host must know of
// each other, listeners.go the sockets that a program was started with, quiet.go what is not announced, neighbours.go what the kernel must know of the path that packets of programs take,
// moves.go by which device they come if theirs is gone, resets.go how a program hears of a reset that no packet can bring.
//
// One namespace with one device has both sockets of a connection: the addresses of inner are those of
// outer the other way around, so the kernel tells them apart, and so do the programs.
//
// What belongs elsewhere: which connections are worth SMC (policy), the CLC handshake, the carrying
// over RDMA, the cgroups of units and pods.
//
// A Diverter needs CAP_NET_ADMIN, CAP_SYS_ADMIN and CAP_BPF, and Linux 5.11: before, maps count as locked memory. The package for
// that limit is not used: it calls bpf(2) when any process of smcr starts, and a sandbox may kill it.
package divert
