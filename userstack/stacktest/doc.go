// SPDX-License-Identifier: Apache-2.0

// Package stacktest tests whole stacks of package userstack against each other, on hosts
// of package simfabric: the simulation of seeded histories (sim_…), peers that behave
// like Linux, captured handshakes, failures of links, devices and stacks, and random
// load. It has tests only.
//
// Tests of one part of the stack belong beside that part. Tests here use the exported
// names of userstack, and package inside for what must be checked but is not exported.
//
// No privileges are needed.
package stacktest
