// SPDX-License-Identifier: Apache-2.0

// Probe is the test program of package e2e: an echo server, and a client that
// opens many connections at once, holds them, and says how each one ended;
// and clients that close by halves or with a reset, or set options that take
// privileges. It uses package net alone, is linked statically, and knows nothing of SMC.
//
//	probe server ADDRESS
//	probe client ADDRESS CONNECTIONS [-busy]
//	probe halfclose ADDRESS BYTES
//	probe abort ADDRESS
//	probe rights ADDRESS
//
// They print one line for each event; SIGTERM closes all connections in good
// order. Needs no privileges.
package main
