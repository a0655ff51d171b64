// SPDX-License-Identifier: Apache-2.0

// Package owner finds the processes that have TCP sockets, as ss(8) does with -p: sock_diag(7) says which socket a
// connection has, and procfs whose descriptors are that socket. So it finds what the calling user may see, and
// believes nobody but the kernel.
package owner
