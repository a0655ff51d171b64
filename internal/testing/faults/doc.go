// SPDX-License-Identifier: Apache-2.0

// Package faults has the tests of what happens when something around the stacks fails:
// system calls, descriptors, disks, netdevs, network namespaces, the network itself.
//
// The product is unchanged. Two hosts run `smcr serve`, and programs under `smcr run`
// exchange data of which every byte is checked (internal/testing/programs/checked). The
// faults come from outside: system calls fail by internal/testing/programs/inject, and
// netdevs and namespaces are changed with the means of the kernel.
//
// With each fault, four things must hold:
//
//   - No byte is wrong, and no stream ends in order before all of it has arrived.
//   - Nothing hangs: a connection makes progress, or ends with an error that the program
//     sees, within [HangTime].
//   - The stack lives on. A stack that cannot start ends with a sentence
//     and exit status 1.
//   - Back to zero: within [SettleTime] nothing of the connections remains, neither in the
//     listings nor as descriptors, and later connections are SMC-R within [BackTime].
//
// Each fault writes a [Row], a line of JSON, to the file that the environment variable
// SMCR_FAULTS_RESULTS names. Program table in this folder makes the table of
// docs/reliability.md of these lines. `make faults` does both.
//
// What belongs here is what fails and what must hold then. A new system call is a line of
// sweeps (sweep_test.go), a new fault of the network a line of networkFaults
// (network_test.go). Bugs of peers and attacks are in package adversary, the deaths of
// processes in package e2e, and faults of the simulated network in userstack/stacktest.
//
// The tests need root. `make test-all` runs a part of them, about a minute, which a seed
// selects: another one each day, or that of SMCR_FAULTS_SEED. SMCR_FAULTS=full selects all,
// as `make faults` does, which takes more than an hour. SMCR_FAULTS_ONLY=CALL or
// CALL:ERRNO selects one sweep.
package faults
