// SPDX-License-Identifier: Apache-2.0

// Package connector connects TCP sockets that are programs' own: without changing what
// the program sees of them, and without a thread for each that waits.
//
// No privileges.
package connector
