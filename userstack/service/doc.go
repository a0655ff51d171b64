// SPDX-License-Identifier: Apache-2.0

// Package service runs the stack of one network namespace as a process (smcr serve). It owns a
// [userstack.Stack], takes the connections of programs at the devices of the host and carries
// them over SMC-R, and serves the control protocol of package nl. The command line, the
// configuration file and the log belong to internal/serve, not here.
//
// One connection of a program, from SYN to the memory of the peer:
//
//	package divert    announces SMC, and holds the packet that ends the handshake
//	connection.go     agrees with the peer, over outer, and decides: SMC-R, TCP, or a reset
//	outer.go          the TCP connection on which it does
//	carry.go          inner, the end of the program's connection, and what comes of the end
//	ride.go           who carries the bytes: the engine, or a relay
//	package driver    carrier.go moves them between inner and the RMB
//
// Beside:
//
//	boundary.go       the Diverter, its beginning and its end
//	attach.go         which programs: the commands about cgroups
//	places.go         where SMC must not be announced, with machine.go
//	short.go          to whom it is not worth it
//	learnt.go         with whom connections stay TCP, for listings
//	tallies.go        what became of the connections of each cgroup
//	list.go           those that are TCP, for listings
//	deciding.go       answers wait for connections that are being decided
//	handover.go       another process takes over: the side of the old one
//	predecessor.go    the side of the new one
//	drain.go          what the Diverters of both do meanwhile
//	history.go        counters that go on
//
// The sockets of a service are in a directory whose name is the number of the network
// namespace (package place). So commands find the service without configuration. The directory
// belongs to root, so no other user can replace the service.
//
// At its end, a service resets the connections that remain.
//
// # One host
//
// Connections within a machine are TCP, also those between network namespaces (machine.go).
// Config.NoLocal has the latter use RoCE.
//
// # Rules
//
// A Service is safe for concurrent use. It needs the privileges of the stack, and those of
// package divert: CAP_NET_RAW for software RoCE, CAP_NET_ADMIN, CAP_BPF, and at its start
// CAP_SYS_ADMIN. Without the latter ones, the connections of programs are TCP.
package service
