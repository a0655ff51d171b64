// SPDX-License-Identifier: Apache-2.0

// Package kernelsmc has the SMC of the kernel carry the connections of a program that makes TCP sockets. Each socket() of the
// program and its descendants that asks for a TCP socket, or for a Multipath TCP one, gives an SMC socket; no other call is
// changed. An SMC socket becomes plain TCP by itself if the peer has no SMC.
//
// The process that was started gets a seccomp filter and executes the program ([Config.Become]). Another process, the supervisor,
// has the listener of the filter and answers these calls ([Supervise]). It is started beside the program, so that this has no child
// that it has not made, and ends with the last process that has the filter.
//
// No other filter of a program is changed, and a filter cannot be removed: so the program gets no privileges from set-user-ID
// files. Sockets that io_uring makes are TCP.
package kernelsmc
