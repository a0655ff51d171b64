// SPDX-License-Identifier: Apache-2.0

// Probe is the test program of package e2e: an echo server; a client that opens many
// connections at the same time, holds them, and prints how each one ended; and clients
// that close one direction, reset, or set options that need privileges. It uses package
// net alone, is linked statically, and does not use SMC itself.
//
//	probe server ADDRESS
//	probe client ADDRESS CONNECTIONS [-busy]
//	probe halfclose ADDRESS BYTES
//	probe abort ADDRESS
//	probe rights ADDRESS
//
// They print one line for each event. SIGTERM closes all connections in order. It needs
// no privileges.
package main
