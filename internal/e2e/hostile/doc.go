// SPDX-License-Identifier: Apache-2.0

// Hostile is a user of the machine who means the stack ill, for package e2e.
//
//	hostile press ADDRESS
//	hostile strange ADDRESS
//
// The first takes all that it can get of the stack of this network namespace, at
// both of its sockets, until it is killed: connections that say nothing, or half a
// hello, or ask and do not read; sessions with connections to ADDRESS, with too
// many descriptors and with none. It says "pressing" when it has tried each once.
//
// The second opens a session, moves to a user and network namespace of its own,
// hands sockets of that namespace to the stack, connected to a listener there at
// the port of ADDRESS and about to connect to ADDRESS, and says what the stack
// answers.
//
// Needs no privileges.
package main
