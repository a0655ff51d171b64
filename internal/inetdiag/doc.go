// SPDX-License-Identifier: Apache-2.0

// Package inetdiag is the codec of sock_diag(7) for TCP sockets: the requests and the answers of linux/inet_diag.h, without the headers
// of netlink. It does no I/O: who asks has a socket of its own, for its namespace, with its time limits.
package inetdiag
