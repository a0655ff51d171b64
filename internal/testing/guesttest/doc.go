// SPDX-License-Identifier: Apache-2.0

// Package guesttest tests the module against a Linux kernel with SMC, in guests of
// package guest. It checks that package nl and the program smcr report what the
// kernel has, also where the kernel has no SMC. It also checks that smcr, under each
// name of smc-tools, reports the same as its own commands do, in the form that was
// recorded from smc-tools, and that smcr exporter and smcr top show the same. It has tests only.
//
// One pair of guests serves all tests. Package guest/inguest has the tests that run
// inside; command programs/smcpeer moves data over AF_SMC there. Needs QEMU and, the
// first time, the package mirror; no privileges.
package guesttest
