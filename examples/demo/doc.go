// SPDX-License-Identifier: Apache-2.0

// Demo shows SMC-R in user space from end to end: it makes two hosts (network
// namespaces joined by a veth), starts an ordinary web server on one and an
// ordinary web client on the other, both under `smcr run`, and shows the link
// group, the counters, and what crossed the wire between them. It exits with
// status 0 only if the bytes are right and crossed as RoCE.
//
// `make demo` builds what it needs and runs it. Needs root, nsenter and
// tcpdump.
package main
