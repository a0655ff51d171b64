// SPDX-License-Identifier: Apache-2.0

// Package header reads and writes the headers of RoCE packets, version 1 and
// version 2, as views over bytes: Ethernet with 802.1Q, GRH, IPv4, IPv6, UDP,
// BTH, RETH, AETH and ImmDt, and computes the ICRC.
//
// A view is a byte slice with accessors. The accessors need the length of the
// header (BTHLen and so on) and panic on a shorter slice. So use the functions
// that check the length for received bytes: ParseTransport, ParseV1, ParseV2,
// ParseEthernet, ParseUDPIPv4 and ParseUDPIPv6. They never read beyond their argument. All
// multi-byte fields are in network byte order, except the ICRC, which is
// little-endian.
//
// The layouts are those of the InfiniBand Architecture Specification, volume 1,
// chapters 5 (packet format), 7.8 (ICRC), 8.3 (GRH) and 9 (transport), with
// annex A16 (RoCE) and annex A17 (RoCE version 2).
//
// The package does no I/O, needs no privileges and starts no goroutines. Views
// may be read concurrently; a [Checker] belongs to one goroutine at a time.
package header
