// SPDX-License-Identifier: Apache-2.0

// Package conntest has checks for simulations that see both ends of a connection of
// package conn. Checks that need only one end are in package conn itself.
package conntest
