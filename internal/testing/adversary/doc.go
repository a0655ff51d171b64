// SPDX-License-Identifier: Apache-2.0

// Package adversary is a host that attacks SMC-R stacks over real sockets, and the tests
// of what the attacks must not achieve.
//
// An attacker is one of three:
//
//   - a host on the LAN ([Host]): it has an address of its own and may send any frame,
//     also with the addresses of others ([Forger]);
//   - an unprivileged user of the peer's host: it may send UDP from that host's address,
//     without raw sockets ([Port], opened on that host);
//   - a lying peer ([Peer]): it makes a link group with the victim in order, and then
//     sends what it likes over CLC, LLC, CDC and RDMA.
//
// What belongs here is what attacks, and the table of the attacks. The attacker shares the
// codecs of messages and headers with the product, which have tests of their own against
// other implementations, and nothing else: its queue pairs ([QP]) do what they are told,
// in any order and with any number. What the product itself needs to defend itself does not
// belong here.
//
// A new attack is a row of a table: rdmaLies (peer_test.go), cdcLies and llcLies
// (messages_test.go) for a lying peer, impostures and brokenCLC (lan_test.go) for a client,
// answers (server_test.go) for a server, sweeps (user_test.go) for a user. docs/security.md
// says what each table shows.
//
// The tests make the network namespaces in which they run (package netnstest), with two
// hosts that use the stack and one that attacks. They need root.
package adversary
