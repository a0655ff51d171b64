// SPDX-License-Identifier: Apache-2.0

// Package reflector has programs that talk to themselves do so by way of a second host. The
// connections of a host with itself never leave it, so nothing that stands at its devices sees
// them. Here each one leaves the host and comes back:
//
//	client ─ NAT ═ device ═ reflector ═ device ═ NAT ─ server
//	└────────────── host A ─────────┘ B └────── host A ──────┘
//
// [Prepare] makes the rules of both hosts, and [Run] is the reflector, on host B. Client and server
// notice nothing: each sees the addresses and ports that it would see without.
//
// Each address of host A by which it reaches itself has a number: 0 is the address of its device, N
// is 127.0.0.N, and 1 is ::1, too. A connection from number S to number D is one from A(S) to B(D) on
// the wire, with the ports of the program, and the reflector's own is one from B(S) to A(D), with the
// same ports. A(N) and B(N) are in blocks of the hosts' network. So no two connections of the
// programs ever become one.
//
// A SYN to the reflector waits (hold.go) until the reflector has connected back with the
// server. If that is refused, so is the SYN. From then on, the bytes of both connections are carried
// (link.go): ends of streams, resets, urgent bytes, and that nobody reads.
//
// What differs from connections within a host: both sides have buffers, so more is written
// before a sender waits; the time that a packet takes; a connection of a socket with itself is refused; the
// addresses 127.0.0.64 and above stay within the host.
package reflector
