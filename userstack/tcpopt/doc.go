// SPDX-License-Identifier: Apache-2.0

// Package tcpopt announces SMC-R in the TCP handshake of chosen sockets, and reports what
// their peers announced. It uses the experimental TCP option of RFC 7609, appendix A.1 (kind
// 254, ExID E2D4C3D9), which Linux itself sets for AF_SMC sockets only.
//
// An eBPF program of type SOCK_OPS, assembled here and attached to the root of
// the cgroup v2 tree, writes the option on the SYN of sockets marked with
// [Program.MarkConnect] and on the SYN-ACK of listeners marked with
// [Program.MarkListen] when the SYN carried it. Nothing is ever written for a
// socket that was not marked. After the handshake the program is switched off
// for the socket, so that established connections cost nothing.
//
// What belongs here: the program, its attachment, the marks. The caller decides what to do
// with the answer: the CLC handshake, or plain TCP.
//
// # Agreement
//
// Both ends must come to the same result. Otherwise one end sends a CLC message to the
// application of the other. The guarantees are:
//
//   - A client says PeerSMC only if it sent the option and the SYN-ACK had it.
//   - A server whose SYN-ACK had the option always says PeerSMC.
//   - A server may say PeerSMC where the client does not, if something on the
//     path took the option off the SYN-ACK, or the SYN was answered before the
//     listener was marked and saved by whoever had marked it earlier. Such a
//     server finds application data where it expects a CLC Proposal.
//
// TCP Fast Open, SYN cookies and a header without room for the option lead to
// PeerNoSMC on both ends and leave the handshake as it is.
//
// # The gate
//
// The peer trusts CLC messages on a socket whose handshake announced SMC-R as messages of
// the host. If other processes have the socket too, such as the program that made it,
// [Program.GateConnect] and [Program.GateListen] keep them from sending. A second eBPF
// program, attached when it is first needed, sees each packet that leaves the cgroup, and
// drops data of gated sockets beyond a limit. Only [Gate.Send] moves the limit, after it has
// checked that it wrote all bytes up to there. So it does not matter how other processes
// write, and in which segments or how often TCP sends. The gate exists before the connection
// is established at either end. It opens after the last message of Gate.Send (DECLINE), or
// when the peer has declined. There is no gate if one end does not announce SMC-R. Otherwise
// it stays closed as long as the connection lasts. SYN, FIN, RST and acknowledgements pass.
//
// Other processes can still read what the peer sends, and end the connection. If they write,
// the handshake fails with [ErrForeign] or times out.
//
// Not covered are raw sockets, and TCP_REPAIR, both of which take privileges, and
// connections that live when the Program ends. Segments that IPsec has encrypted
// pass.
//
// # Limits
//
// The sockets of MPTCP, the default of Go listeners, cannot carry the option:
// [ErrUnsupportedSocket]. Marking a socket that listens already needs
// Linux 6.12, everything else Linux 5.15. A SYN that was answered before the
// listener was marked stays without the option. Sockets are reached that belong
// to the cgroup tree as seen from the attaching process; in a container without
// the host's cgroup namespace these are the container's. The kernel's search
// misses the option behind another of kind 254 that is shorter than 6 bytes.
// Marking makes a listener save SYNs (TCP_SAVE_SYN).
//
// # Concurrency and privileges
//
// A [Program] is safe for concurrent use. Attach needs CAP_BPF and
// CAP_NET_ADMIN, or CAP_SYS_ADMIN; without a mounted cgroup v2 it mounts one
// that only it can see, which takes CAP_SYS_ADMIN. Any number of processes may
// attach at the same time; each serves the sockets it marked. The program
// leaves the kernel with the process at the latest.
package tcpopt
