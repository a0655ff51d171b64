// SPDX-License-Identifier: Apache-2.0

// Package hslimit is the command smcr hslimit: whether listeners under pressure
// answer new connections with plain TCP. Showing needs no privileges; changing
// needs root, or to be the owner of the stack in user space.
package hslimit
