// SPDX-License-Identifier: Apache-2.0

// Package tcpopt announces SMC-R in the TCP handshake of chosen sockets, and reports what
// their peers announced. It uses the experimental TCP option of RFC 7609, appendix A.1
// (kind 254, ExID E2D4C3D9), which Linux itself sets for AF_SMC sockets only.
//
// An eBPF program of type SOCK_OPS is assembled here and attached to the root of the
// cgroup v2 tree. It writes the option on the SYN of sockets that are marked with
// [Program.MarkConnect]. It also writes the option on the SYN-ACK of listeners that are
// marked with [Program.MarkListen], if the SYN had the option. It writes nothing for
// sockets without a mark. After the handshake, the program is switched off for the
// socket, so an established connection has no cost.
//
// # Copied options
//
// Something on the path may copy the options of the SYN into the SYN-ACK, so that each server
// seems to announce SMC-R. So the SYN has a second option of kind 254, the probe, if there is
// room for it (12 bytes in all). Its experiment id, 534D4372, belongs to no protocol, so hosts
// ignore it. If the SYN-ACK has it, the client reports PeerCopies and uses plain TCP. Its ACK
// has the probe then, so that a server that has announced SMC-R reports PeerNoSMC.
//
// # Scope
//
// What belongs here: the program, its attachment, the marks. The caller decides what to
// do with the answer: the CLC handshake, or plain TCP.
//
// # Agreement
//
// Both ends must come to the same result. Otherwise one end sends a CLC message to the
// application of the other. The guarantees are:
//
//   - A client reports PeerSMC only if it sent the option and the SYN-ACK had it.
//   - A server whose SYN-ACK had the option always reports PeerSMC.
//   - In two cases a server may report PeerSMC and its client does not: something on the
//     path removed the option from the SYN-ACK, or copied the probe into it and the ACK was
//     lost. Such a server finds application data where it expects a CLC Proposal.
//
// What the SYN-ACK said is what the program has noted when it was built. The saved SYN shows
// only what the peer has announced. A SYN-ACK that cannot be noted has no option.
//
// With TCP Fast Open, with SYN cookies, and if the header has no room for the option,
// both ends report PeerNoSMC. The handshake itself does not change.
//
// # Tables
//
// Marks of connections are in the storage of the sockets. The local addresses of marked
// listeners and half-open connections are in tables, too: 8192 and 2048 have room. Nothing in
// them replaces anything else: what has no room is not announced. Another table says to whom
// listeners announce nothing for a time ([Program.Hold]).
//
// # Limits
//
// The sockets of MPTCP, the default of Go listeners, cannot carry the option:
// [ErrUnsupportedSocket]. To mark a socket that already listens needs Linux 6.12,
// everything else needs Linux 5.15. A SYN that was answered before the listener was
// marked stays without the option. The program works for sockets of the cgroup tree that
// the attaching process sees. In a container with a separate cgroup namespace, these are
// the sockets of the container. The kernel does not find the option after another option
// of kind 254 that is shorter than 6 bytes. Marking makes a listener save SYNs
// (TCP_SAVE_SYN).
//
// # Concurrency and privileges
//
// A [Program] is safe for concurrent use. Attach needs CAP_BPF and CAP_NET_ADMIN, or
// CAP_SYS_ADMIN. If cgroup v2 is not mounted, Attach makes a mount that only it can see,
// which needs CAP_SYS_ADMIN. Any number of processes may attach at the same time; each
// serves the sockets that it has marked. The kernel removes the program when the process
// ends.
package tcpopt
