// SPDX-License-Identifier: Apache-2.0

// Package pnetcmd is the command smcr pnet: the table of physical network IDs.
// Listing needs no privileges; changing needs root, or to be the owner of the
// stack in user space.
package pnetcmd
