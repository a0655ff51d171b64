// SPDX-License-Identifier: Apache-2.0

// Package programs is what a stack does for programs that have sockets of their own:
// it marks the sockets, opens their gates, runs the rendezvous on them, and counts and
// notes the connections that the stack does not carry. Package service calls it for the
// launchers.
//
// It decides nothing about SMC itself: it stands on package userstack, which it enters
// through package inside. What a launcher asks for, and how, does not belong here.
//
// All methods are safe for concurrent use. Marking sockets needs the privileges of
// package tcpopt.
package programs
