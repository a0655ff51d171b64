// SPDX-License-Identifier: Apache-2.0

// Package tcptable remembers the TCP sockets that a stack knows of and does not carry:
// connections that stay TCP, connections within the host, and listeners. Listings show
// them as long as the kernel knows them.
//
// A [Table] only remembers. Why a connection stays TCP is decided elsewhere.
//
// All methods are safe for concurrent use. The package needs no privileges.
package tcptable
