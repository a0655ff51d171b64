// SPDX-License-Identifier: Apache-2.0

// Probe is the test program of package e2e: an echo server; a client that opens many
// connections at the same time, holds them, and prints how each one ended; and clients
// that close one direction, reset, or set options that need privileges. It uses package
// net alone, is linked statically, and does not use SMC itself.
//
//	probe server ADDRESS [PORTS]
//	probe client ADDRESS CONNECTIONS [-busy | PORTS]
//	probe halfclose ADDRESS BYTES
//	probe abort ADDRESS
//	probe rights ADDRESS
//
// With PORTS, server listens at so many ports from that of ADDRESS on, and client connects
// to each of them in turn.
//
// They print one line for each event. SIGTERM closes all connections in order. It needs
// no privileges.
package main
